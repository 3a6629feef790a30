"""Output of a run: the bar, metrics.jsonl, the boards and the samples' files."""

import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from rich.text import Text
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_runs import loss, objective
from zoo.runs import read_lines

from recipes.config import Data, Optimizer, Output, Recipe
from recipes.console import TrainingBar
from recipes.data import speeches
from recipes.engine.objectives.bound import Bound
from recipes.engine.run import Step
from recipes.logging import METRICS, TIMING, Watch, read_metrics
from recipes.logging.boards import RUN_ID
from recipes.logging.metrics import Metrics
from recipes.metrics import Terms

STEPS = 6
LOG_EVERY = 2


def recipe(folder: Path, **output) -> Recipe:
    """Nothing of it is trained here; no board by default."""
    return Recipe(
        data=Data(corpus=speeches(), folder=folder / "data"),
        process=dict(kind="mdlm"),
        model=dict(kind="dit", dim=8, depth=1, heads=1),
        optimizer=Optimizer(lr=1e-3),
        output=Output(folder=folder, **({"log_every": LOG_EVERY, "tensorboard": False} | output)),
        batch=4,
        steps=STEPS,
    )


def made(number: int) -> Step:
    """A step whose numbers have no short decimals: 0.1 nats on each of 4 words' tokens, none on
    clusters.
    """
    levels = torch.tensor([[0.4, 4.0], [0.0, 0.0], [number / 3, 12.0]], dtype=torch.float64)
    names = ["word", "cluster", "mask"]
    return Step(
        loss=1 / 3 + number,
        norm=math.pi / number,
        rate=1e-3 / 7,
        levels=levels,
        names=names,
        stop=False,
    )


def terms(sequences: int = 5) -> Terms:
    nats = (
        torch.rand(sequences, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        * 40
    )
    return Terms(torch.arange(sequences), nats, torch.arange(8, 8 + sequences))


def feed(watch: Watch, numbers) -> None:
    for number in numbers:
        watch.step(number, made(number))


def records(folder: Path) -> list[dict]:
    return read_lines(folder / METRICS)


def untimed(folder: Path) -> list[dict]:
    return [
        {name: value for name, value in found.items() if name not in TIMING}
        for found in records(folder)
    ]


def test_a_record_holds_the_step_exactly(tmp_path):
    with Watch(recipe(tmp_path), True, 0) as watch:
        feed(watch, [1, 2])
    step = made(2)
    assert untimed(tmp_path) == [
        {
            "step": 2,
            "kind": "train",
            "loss": step.loss,
            "norm": step.norm,
            "rate": step.rate,
            "tokens": 16,
            "levels": {"word": 0.1, "mask": 2 / 3 / 12},
            "share": {"word": 0.25, "mask": 0.75},
        }
    ]
    (record,) = records(tmp_path)
    assert record["tokens_per_second"] == 32 / record["seconds"] > 0


def test_every_few_steps_and_the_last(tmp_path):
    with Watch(replace(recipe(tmp_path), steps=5), True, 0) as watch:
        feed(watch, range(1, 6))
    assert [found["step"] for found in records(tmp_path)] == [2, 4, 5]


def test_records_are_on_disk_at_once(tmp_path):
    with Watch(recipe(tmp_path), True, 0) as watch:
        feed(watch, [1, 2])
        assert len(records(tmp_path)) == 1


def test_one_write_for_a_record(tmp_path, monkeypatch):
    metrics = Metrics(tmp_path / METRICS, 0)
    written = []
    with metrics:
        monkeypatch.setattr(
            metrics, "_file", SimpleNamespace(write=written.append, close=metrics._file.close)
        )
        metrics.write({"step": 1, "kind": "train", "text": "x" * 100_000})
    assert len(written) == 1 and written[0].endswith(b"}\n")


@pytest.mark.parametrize("cut", [0, 1, 40], ids=["whole", "without its end", "halved"])
def test_a_killed_run_ends_with_the_records_of_one_that_was_not(tmp_path, cut):
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    with Watch(recipe(whole), True, 0) as watch:
        feed(watch, range(1, STEPS + 1))
        watch.bound(STEPS, terms())
    with Watch(recipe(killed), True, 0) as watch:
        feed(watch, range(1, 6))
    path = killed / METRICS
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - cut)
    with Watch(recipe(killed), True, 3) as watch:
        assert [found["step"] for found in records(killed)] == [2]
        feed(watch, range(4, STEPS + 1))
        watch.bound(STEPS, terms())
    assert untimed(killed) == untimed(whole)
    assert [path.name for path in killed.iterdir()] == [METRICS]


def test_a_broken_last_line_is_cut_off_even_of_a_step_that_stays(tmp_path):
    path = tmp_path / METRICS
    path.write_bytes(
        b'{"step": 2, "kind": "train", "loss": 1.5}\n{"step": 3, "kind": "train", "loss": 1.'
    )
    Metrics(path, 10).__exit__()
    assert path.read_bytes() == b'{"step": 2, "kind": "train", "loss": 1.5}\n'


def test_the_cut_replaces_the_file_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / METRICS
    before = b'{"step": 2, "kind": "train"}\n{"step": 4, "kind": "train"}\n'
    path.write_bytes(before)

    def killed(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        Metrics(path, 2)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "line", [b'{"step": 1', b"[]", b"3", b'{"kind": "train"}', b'{"step": "1", "kind": "train"}']
)
def test_a_broken_line_before_the_last_is_refused(tmp_path, line):
    path = tmp_path / METRICS
    path.write_bytes(line + b'\n{"step": 2, "kind": "train"}\n')
    with pytest.raises(
        ValueError, match=r"metrics\.jsonl, line 1: not a JSON object with step and kind"
    ):
        list(read_metrics(path))


def test_seconds_go_on_after_a_resume(tmp_path):
    (tmp_path / METRICS).write_text('{"step": 2, "kind": "train", "seconds": 100.0}\n')
    with Watch(recipe(tmp_path), True, 3) as watch:
        feed(watch, [4])
    assert (
        records(tmp_path)[1]["seconds"] == pytest.approx(100, abs=2)
        and records(tmp_path)[1]["seconds"] > 100
    )


def test_validation_and_samples_are_left_out_of_the_speed(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("recipes.console.bar.time.perf_counter", lambda: now[0])
    with Watch(recipe(tmp_path, log_every=1), True, 0) as watch:
        for number, (training, other) in enumerate([(1, 50), (2, 70), (1, 0)], start=1):
            now[0] += training
            watch.step(number, made(number))
            now[0] += other
            watch.bound(number, terms())
            now[0] += other
            watch.samples(number, [], [])
    trained = [found for found in records(tmp_path) if found["kind"] == "train"]
    assert [(found["seconds"], found["tokens_per_second"]) for found in trained] == [
        (1, 16),
        (3, 32 / 3),
        (4, 12),
    ]
    last = [(found["step_seconds"], found["window_tokens_per_second"]) for found in trained]
    assert last == [(1, 16), (2, 8), (1, 16)]
    assert not any("mfu" in found for found in trained)


def test_the_utilisation_is_that_of_the_last_steps(tmp_path, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("recipes.console.bar.time.perf_counter", lambda: now[0])
    with Watch(recipe(tmp_path), True, 2, fastest=0.5) as watch:
        for number, seconds in enumerate([1, 3, 1, 1], start=3):
            now[0] += seconds
            watch.step(number, made(number))
    assert [(found["step_seconds"], found["mfu"]) for found in records(tmp_path)] == [
        (2, 0.25),
        (1, 0.5),
    ]
    assert (
        "  11 tokens/s  MFU 25.0 %  0:00:00 left" in capsys.readouterr().out
    )  # of the record before


def test_the_bound_and_its_terms(tmp_path, capsys):
    measured = terms()
    with Watch(recipe(tmp_path), True, 0) as watch:
        watch.bound(4, measured)
    (record,) = records(tmp_path)
    tokens = measured.tokens.sum().item()
    parts = [record[name] for name in ("diffusion", "prior", "reconstruction")]
    assert parts == pytest.approx((measured.nats.sum(0) / tokens).tolist())
    assert record["nats_per_token"] == measured.per_token.value == pytest.approx(sum(parts))
    assert record["standard_error"] == measured.per_token.standard_error > 0
    assert (record["step"], record["kind"], record["sequences"], record["draws"]) == (
        4,
        "bound",
        5,
        1,
    )
    assert (
        f"step 4: validation bound {measured.per_token} over 5 texts x 1 draw (diff"
        in capsys.readouterr().out
    )


CLIPPED = "clipped at 2, padding counted"


@pytest.mark.parametrize(
    ("values", "label"),
    [
        (loss(), CLIPPED),
        (loss(weighting="clip:10", count_padding=False), "clipped at 10, padding left out"),
        (loss(weighting="clip"), "not clipped, padding counted"),
        (loss(weighting={"kind": "clip", "low": 0.5}), "no weight below 0.5, padding counted"),
        (loss(weighting="dynamic"), "dynamic weights up to 2, padding counted"),
        (loss(levels="balanced"), CLIPPED),
        (
            loss(mode=[1.0, 0.5]),
            f"{CLIPPED}, all edges below a token times 1, 0.5",
        ),
        (
            loss(kind="auxiliary", mode="hard", weight=0.1),
            f"{CLIPPED}, masks predict tokens, 0.1 x that of clusters added",
        ),
    ],
)
def test_the_printed_loss_has_its_description(tmp_path, capsys, values, label):
    changed = replace(
        recipe(tmp_path),
        model=dict(kind="dit", dim=8, depth=1, heads=1),
        loss=Bound.write_out(values, "mdlm"),
    )
    with Watch(changed, True, 0) as watch:
        feed(watch, [1])
    assert f"loss {made(1).loss:.3f} nats/token ({label})  " in capsys.readouterr().out


def test_without_padding_the_output_does_not_mention_it():
    assert objective(**Bound.write_out(loss(), "mdlm")).about(padded=False) == "clipped at 2"


def test_draws_are_counted_where_they_are_averaged():
    mean = Terms.average([terms(), terms(), terms()])
    assert (mean.basis, mean.first(1).basis) == ("5 texts x 3 draws", "1 text x 3 draws")
    assert Terms.join([mean.first(1)]).basis == "1 text x 3 draws"


def test_no_standard_error_of_one_sequence(tmp_path):
    with Watch(recipe(tmp_path, tensorboard=True), True, 0) as watch:
        watch.bound(4, terms(1))
    assert records(tmp_path)[0]["standard_error"] is None
    assert "bound/standard_error" not in events(tmp_path).Tags()["scalars"]


def test_quantiles_of_weights(tmp_path):
    with Watch(recipe(tmp_path), True, 0) as watch:
        watch.weights(2, torch.arange(101.0).flip(0))
        watch.weights(4, torch.zeros(0))
    assert records(tmp_path) == [
        {
            "step": 2,
            "kind": "weights",
            "count": 101,
            "mean": 50.0,
            "quantiles": {
                "0.0": 0,
                "0.05": 5,
                "0.25": 25,
                "0.5": 50,
                "0.75": 75,
                "0.95": 95,
                "1.0": 100,
            },
        }
    ]


def test_samples_and_their_way_from_noise(tmp_path, capsys):
    trace = [(1 - place / 100, Text(f"state {place}")) for place in range(101)]
    with Watch(recipe(tmp_path), True, 0) as watch:
        watch.samples(7, ["first [b]text[/b]", "second\ntext"], trace)
    path = tmp_path / "samples" / "step_00000007.txt"
    head, way = path.read_text(encoding="utf-8").split("\n\nsample 1 as it denoises\n")
    assert head == "sample 1\nfirst [b]text[/b]\n\nsample 2\nsecond\ntext"
    assert way.splitlines() == [
        f"t = {1 - place / 100:.3f}: state {place}" for place in range(0, 101, 10)
    ]
    assert str(path) in capsys.readouterr().out


def test_a_short_way_is_shown_state_by_state(tmp_path):
    with Watch(recipe(tmp_path), True, 0) as watch:
        watch.samples(7, ["word"], [(1.0, "_"), (0.0, "word")])
    text = (tmp_path / "samples" / "step_00000007.txt").read_text(encoding="utf-8")
    assert text.endswith("\nt = 1.000: _\nt = 0.000: word\n")


def test_other_ranks_write_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with Watch(recipe(tmp_path, tensorboard=True, wandb="words"), False, 0) as watch:
        watch.say("nothing")
        feed(watch, range(1, STEPS + 1))
        watch.weights(2, torch.ones(3))
        watch.bound(2, terms())
        watch.samples(2, ["text"], [(1.0, "_")])
        watch.close()
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr() == ("", "")


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder / "tensorboard"), {"tensors": 0, "histograms": 0}).Reload()


def test_tensorboard_holds_it_all(tmp_path):
    with Watch(recipe(tmp_path, tensorboard=True), True, 0) as watch:
        feed(watch, range(1, 5))
        live = [event.step for event in events(tmp_path).Scalars("train/loss")]
        watch.weights(4, torch.arange(5.0))
        watch.bound(4, terms())
        watch.samples(4, ["a _b_ " * 30], [])
    assert live == [2, 4]
    found = events(tmp_path)
    loss = [(event.step, event.value) for event in found.Scalars("train/loss")]
    assert loss == [(step, pytest.approx(made(step).loss)) for step in (2, 4)]
    assert found.Scalars("train/levels/mask")[1].value == pytest.approx(4 / 3 / 12)
    assert found.Scalars("bound/nats_per_token")[0].value == pytest.approx(terms().per_token.value)
    histogram = found.Histograms("weights/histogram")[0].histogram_value
    assert (histogram.num, histogram.sum, histogram.max) == (5, 10, 4)
    (text,) = found.Tensors("samples/text_summary")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    assert all(line.startswith("    ") and len(line) <= 104 for line in lines)
    assert " ".join("".join(line + " " for line in lines).split()).startswith(
        "sample 1 a _b_ a _b_"
    )


def test_tensorboard_hides_repeated_steps(tmp_path):
    with Watch(recipe(tmp_path, tensorboard=True), True, 0) as watch:
        feed(watch, range(1, 7))
    with Watch(recipe(tmp_path, tensorboard=True), True, 3) as watch:
        feed(watch, range(4, 5))
    assert [event.step for event in events(tmp_path).Scalars("train/loss")] == [2, 4]


class FakeWandB:
    """Stands for the package: keeps what it was called with."""

    Histogram = staticmethod(lambda values: ("histogram", list(values)))
    Html = staticmethod(lambda page: ("html", page))

    def __init__(self):
        self.calls = []

    def init(self, **arguments):
        self.calls.append(("init", arguments))
        return SimpleNamespace(
            log=lambda values: self.calls.append(("log", values)),
            define_metric=lambda *args, **named: self.calls.append(("define_metric", args, named)),
            finish=lambda exit_code: self.calls.append(("finish", exit_code)),
        )


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_receives_every_record(tmp_path, wandb):
    with Watch(recipe(tmp_path, wandb="words"), True, 0) as watch:
        feed(watch, [1, 2])
        watch.weights(2, torch.arange(3.0))
        watch.samples(2, ["<s> & </s>"], [])
    (_, start), *defined, logged, quantiles, histogram, text, end = wandb.calls
    assert start["project"] == "words" and start["resume"] == "allow"
    assert (
        start["config"]["output"]["wandb"] == "words"
        and start["config"]["process"]["kind"] == "mdlm"
    )
    assert start["id"] == (tmp_path / RUN_ID).read_text(encoding="utf-8")
    assert defined == [
        ("define_metric", ("step",), {}),
        ("define_metric", ("*",), {"step_metric": "step"}),
    ]
    assert logged[1]["step"] == 2 and logged[1]["train/loss"] == made(2).loss
    assert quantiles[1]["weights/quantiles/0.5"] == 1.0
    assert histogram == ("log", {"step": 2, "weights/histogram": ("histogram", [0, 1, 2])})
    assert "&lt;s&gt; &amp; &lt;/s&gt;" in text[1]["samples"][1]
    assert end == ("finish", 0)


def test_wandb_continues_the_same_run_and_records_a_failure(tmp_path, wandb):
    with Watch(recipe(tmp_path, wandb="words"), True, 0) as watch:
        watch.close()
    with pytest.raises(KeyError), Watch(recipe(tmp_path, wandb="words"), True, 2):
        raise KeyError
    first, second = (call[1]["id"] for call in wandb.calls if call[0] == "init")
    assert first == second
    assert [call for call in wandb.calls if call[0] == "finish"] == [("finish", 0), ("finish", 1)]


@pytest.mark.parametrize(
    ("module", "output", "line"),
    [
        (
            "wandb",
            {"wandb": "words", "tensorboard": True},
            r"output.wandb='words' needs wandb: pip install wandb",
        ),
        (
            "torch.utils.tensorboard",
            {"tensorboard": True},
            "needs tensorboard: pip install tensorboard",
        ),
    ],
)
def test_a_missing_board_is_an_error_before_anything_happens(
    tmp_path, monkeypatch, module, output, line
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=line):
        Watch(recipe(tmp_path, **output), True, 0)
    assert not list(tmp_path.iterdir())


def test_few_lines_where_there_is_no_terminal(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("recipes.console.bar.time.perf_counter", lambda: now[0])
    with TrainingBar(Console(file=sys.stdout, width=40), "step", 1000, 500) as bar:
        for number in range(501, 1001):
            now[0] += 1
            bar.step(number, 2.0, 10)
    lines = capsys.readouterr().out.splitlines()
    steps = [int(line.split()[1].split("/")[0]) for line in lines]
    # every 30 seconds, and at every tenth of the run
    assert steps == [
        begin + after for begin in range(500, 1000, 100) for after in (30, 60, 90, 100)
    ]
    assert lines[0] == "  step 530/1000  loss 2.000 nats/token  10 tokens/s  0:07:50 left"


def test_one_bar_on_a_terminal_and_lines_above_it(tmp_path, monkeypatch, capsys):
    terminal = Console(file=sys.stdout, force_terminal=True, width=80, highlight=False)
    monkeypatch.setattr("recipes.logging.watch.make_console", lambda: terminal)
    with Watch(recipe(tmp_path), True, 0) as watch:
        feed(watch, range(1, STEPS + 1))
        watch.say("a line [of its own]")
    shown = capsys.readouterr().out
    assert f"{STEPS}/{STEPS}  loss" in shown and "tokens/s" in shown and "━" in shown
    assert "a line [of its own]\n" in shown
