"""The report of quality, variety and network calls of a run's samples."""

import itertools
import json
import shutil
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
from matplotlib.image import imread
from refusals import refused_with
from zoo.runs import publish_tiny, publishes

import ddlib as dd
from ddlib_models import DiT
from recipes import frontier as command
from recipes.console import make_console
from recipes.evaluation.frontier import held_out_documents, quality, write_figure
from recipes.frontier import Options, frontier, main
from recipes.generation.calls import network_calls
from recipes.metrics.scoring import Scores, load_scorer, score
from recipes.model_io import as_function, open_saved

published = publishes("clusters, xi")


@pytest.fixture
def options(published, tmp_path):
    return Options(
        run=str(published.run), scorer="none", samples=3, calls=(2, 4), out=tmp_path / "found.json"
    )


def run(options):
    return frontier(options, make_console())


def test_one_command_writes_the_cells_and_the_figure(published, scorer, capsys):
    words = ["--samplers", "confidence", "theta_trapezoidal", "--calls", "2", "5", "--samples", "3"]
    main([str(published.run), "--scorer", str(scorer), *words])
    result = json.loads((published.run / "frontier.json").read_text())
    cells = result["cells"]
    rows = [(cell["sampler"], cell["budget"], cell["steps"]) for cell in cells]
    assert rows == [
        ("confidence", 2, 2),
        ("confidence", 5, 5),
        ("theta_trapezoidal", 2, 1),
        ("theta_trapezoidal", 5, 2),
    ]
    assert all(0 < cell["calls"] <= cell["budget"] for cell in cells)
    assert all(cell[name]["error"] > 0 for cell in cells for name in ("nats", "entropy"))
    protocol = result["protocol"]
    assert (protocol["samples"], protocol["length"], protocol["seed"]) == (3, 24, 0)
    assert len(protocol["checkpoint_sha256"]) == len(protocol["scorer"]["revision"]) == 64
    assert result["starts"][0]["versions"]["torch"] == version("torch")
    assert imread(published.run / "frontier.png").shape[2] == 4
    assert f"nats {cells[0]['nats']['value']:.3f}" in capsys.readouterr().out


def test_without_a_scorer_there_are_entropy_and_calls(options):
    cells = run(options)["cells"]
    assert [cell["sampler"] for cell in cells[::2]] == ["ancestral", "first_hitting", "confidence"]
    assert all(cell["nats"] is None and cell["entropy"]["value"] > 0 for cell in cells)
    assert options.out.with_suffix(".png").exists()


def test_temperatures_and_spacings_have_cells(options, capsys):
    changed = replace(
        options, samplers=("ancestral", "confidence"), calls=(4,), temperature=(1.0, 0.5)
    )
    cells = run(replace(changed, spacing=("time", "jumps")))["cells"]
    rows = [(cell["sampler"], cell["temperature"], cell["spacing"]) for cell in cells]
    both = [("ancestral", heat, spacing) for heat in (1.0, 0.5) for spacing in ("time", "jumps")]
    assert rows == [*both, ("confidence", 1.0, "time"), ("confidence", 0.5, "time")]
    assert len({cell["entropy"]["value"] for cell in cells}) == len(cells)
    printed = capsys.readouterr().out
    assert (
        "ancestral, equal jumps, temperature 0.5" in printed
        and "confidence, temperature 0.5" in printed
    )
    alone = replace(
        options, samplers=("ancestral",), calls=(4,), temperature=(0.5,), spacing=("jumps",)
    )
    assert run(replace(alone, out=options.out.with_name("alone.json")))["cells"] == [cells[3]]
    with pytest.raises(ValueError, match=r"spacing='jumps': confidence or .* has no such times"):
        run(replace(alone, samplers=("confidence",)))
    with pytest.raises(ValueError, match=r"temperature=\(\): must have at least one value"):
        replace(options, temperature=())


def test_cells_of_the_same_settings_are_kept_and_others_measured_again(
    options, monkeypatch, capsys
):
    first = run(replace(options, samplers=("confidence",)))["cells"]
    measured = command.measure_cell
    drawn = []
    monkeypatch.setattr(
        command, "measure_cell", lambda *given: drawn.append(given[2]) or measured(*given)
    )
    more = run(replace(options, samplers=("confidence", "ancestral"), calls=(2, 4, 6), batch=2))[
        "cells"
    ]
    expected = [("confidence", 6), ("ancestral", 2), ("ancestral", 4), ("ancestral", 6)]
    assert more[:2] == first and [(one.sampler, one.budget) for one in drawn] == expected
    drawn.clear()
    capsys.readouterr()
    run(replace(options, samplers=("confidence",), seed=1, top_p=0.9))
    assert (
        len(drawn) == 2 and "6 cells of another seed, top_p are dropped" in capsys.readouterr().out
    )


def test_other_weights_are_measured_again(options, published, tmp_path, monkeypatch):
    changed = replace(
        options, run=str(shutil.copytree(published.run, tmp_path / "run")), samplers=("confidence",)
    )
    run(changed)
    opened = command.LoadOptions.open
    monkeypatch.setattr(
        command.LoadOptions, "open", lambda *given: replace(opened(*given), sha256="trained on")
    )
    result = run(changed)
    assert result["protocol"]["checkpoint_sha256"] == "trained on" and len(result["cells"]) == 2


def test_mismatches_are_refused_before_any_work(options, published, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "measure_cell", None)
    refused_with(options=options, run=run, tmp_path=tmp_path)(r"""
        replace(options, samplers=("ancestral", "nonsense")) | ValueError | nonsense
        replace(options, calls=(4, 0)) | ValueError | calls=0: must be at least 1
        replace(options, out=tmp_path / "found.png") | ValueError | must be another one, for JSON
        run(replace(options, samplers=("theta_trapezoidal",), calls=(1,)))
            | ValueError | calls=1: theta_trapezoidal makes up to 2
        run(replace(options, scorer="./no-such-folder")) | ValueError
            | no-such-folder' cannot be loaded
    """)
    options.out.write_text('{"protocol": {"run": "another"}, "cells": []}')
    with pytest.raises(ValueError, match="holds the result of another"):
        run(options)


def test_a_sampler_of_levels_is_refused_by_name_and_left_out_by_default(tmp_path):
    flat = publish_tiny("uniform", tmp_path)
    changed = Options(run=str(flat.run), scorer="none", samples=2, calls=(2,))
    with pytest.raises(
        ValueError, match="samplers='confidence': Confidence needs a process with levels"
    ):
        run(replace(changed, samplers=("ancestral", "confidence")))
    assert [cell["sampler"] for cell in run(changed)["cells"]] == ["ancestral"]


def test_blocks_share_the_calls(tmp_path):
    blocks = publish_tiny("masks", tmp_path, pace="blocks:size=8")
    found = run(
        Options(
            run=str(blocks.run), scorer="none", samples=2, calls=(2, 3, 9), samplers=("confidence",)
        )
    )
    assert [(cell["budget"], cell["steps"]) for cell in found["cells"]] == [(3, 1), (9, 3)]


@pytest.mark.parametrize("sampler", [dd.samplers.Ancestral(), dd.samplers.Confidence()])
def test_counting_changes_nothing_and_counts_each_sequence_once(sampler):
    process = dd.presets.mdlm(7)
    model = DiT(process.num_states, process.vocab_size, dim=8, depth=1, heads=1).eval()
    before = set(vars(model))

    def drawn():
        return dd.sample(
            process, model, (4, 6), sampler, 6, generator=dd.KeyedGenerator(0, 0, torch.arange(4))
        )

    with network_calls(model) as made:
        words = drawn()
        model(words, torch.zeros(4))
    assert torch.equal(words, drawn()) and set(vars(model)) == before
    calls = made.sequences - 4
    assert calls == 24 if isinstance(sampler, dd.samplers.Confidence) else 4 <= calls < 24


@pytest.mark.parametrize("memory", [False, True])
def test_calls_in_bfloat16_are_counted_as_those_in_float32(memory):
    process = dd.presets.mdlm(7)
    model = DiT(
        process.num_states, process.vocab_size, dim=8, depth=1, heads=1, cond_dim=8, memory=memory
    ).eval()
    controls = [dd.controls.Memory()] if memory else []
    counts = []
    for denoiser in (model, as_function(model, half=True)):
        generator = dd.KeyedGenerator(0, 0, torch.arange(2))
        with network_calls(model) as calls:
            dd.sample(process, denoiser, (2, 6), steps=4, generator=generator, controls=controls)
        counts.append(calls.sequences)
    assert counts[0] == counts[1] > 0


def test_distinct_n_grams_are_counted_over_all_samples():
    found = quality([[1, 2, 1, 2], [2, 1, 3]])["distinct"]
    assert found == {"2": 3 / 5, "3": 1.0}
    assert quality([[1, 1, 1, 1]])["distinct"] == {"2": 1 / 3, "3": 1 / 2}


def test_quality_of_nothing_is_none(tmp_path):
    nothing = quality([[], []], Scores(torch.zeros(2), torch.zeros(2, dtype=torch.int64), 0))
    assert nothing == {"nats": None, "entropy": None, "distinct": None}
    one = quality([[1, 2], []])
    assert one["nats"] is None and one["entropy"]["error"] is None
    how = {"temperature": 1.0, "spacing": "time", "calls": 2.0}
    cells = [{"sampler": "a", **how, **nothing}, {"sampler": "b", **how, **one}]
    for scorer, real in itertools.product(({"name": "models/judge"}, None), (nothing, one, None)):
        write_figure(
            tmp_path / "some.png",
            dict(protocol={"scorer": scorer}, held_out=real, cells=cells),
            "nothing",
        )
        assert (tmp_path / "some.png").exists()


def test_held_out_text_is_judged_beside(published, scorer, options):
    result = run(
        replace(options, scorer=str(scorer), samples=6, samplers=("ancestral",), calls=(2,))
    )
    saved = open_saved(published.run)
    judge = load_scorer(str(scorer))
    texts = [saved.tokenizer.decode(words) for words in held_out_documents(saved, 24, 6)]
    lines = (published.data.folder.parent / "text.jsonl").read_text().splitlines()
    whole = [json.loads(line)["text"] for line in lines]
    assert all(any(text in one for one in whole) for text in texts) and len(set(texts)) == 6
    found = score(judge, texts)
    assert result["held_out"]["nats"]["value"] == pytest.approx(
        float(found.nats.sum() / found.tokens.sum())
    )
    assert result["held_out"]["samples"] == result["cells"][0]["samples"] == 6
    assert held_out_documents(replace(saved, recipe=None), 24, 6) is None
