"""Study of training weights: its stages at tiny sizes, its sealed text and its page."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.data import examples, open_prepared
from recipes.engine import train
from recipes.hdlm_tables import FORCED
from recipes.metrics import read
from recipes.model_io import make_order, open_saved
from studies import smoke
from studies.weights import arms, measurement, narrowing, pages, run, stages, texts
from studies.weights.arms import Sizes, Tuning
from studies.weights.measurement import Cell

ROOT = Path(__file__).parents[1]


def prepared(folder):
    """Return a study at tiny sizes with prepared text and no run."""
    work = folder / "corpus"
    hashes = folder / "unseen.json"
    run.tiny_inputs(work, hashes)
    study = stages.Study(work, folder / "results.json", arms.tiny(hashes))
    study.prepare()
    return study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("weights"))


def searched(study):
    """Return a study whose search is finished."""
    study.grid()
    study.rates()
    return study


@pytest.mark.usefixtures("as_users_call")
def test_a_grid_that_was_killed_continues(tmp_path):
    """Kill the grid after its first run, and make the rest here."""
    study = prepared(tmp_path)
    code = (
        "from pathlib import Path; from studies.weights import arms, stages; "
        f"study = stages.Study(Path({str(study.work)!r}), Path({str(study.out)!r}), "
        f"arms.tiny(Path({str(study.sizes.hashes)!r}))); study.grid()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while not study.out.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = json.loads(study.out.read_text())["search"]
    assert before["masks"]["optimal, 0.003"]["provenance"]["versions"]["torch"]
    study.grid()
    search = study.result()["search"]
    assert list(search["HDLM-64"]) == ["optimal, 0.003", "constant, 0.003"]
    assert search["masks"]["optimal, 0.003"] == before["masks"]["optimal, 0.003"]
    assert search["masks"]["constant, 0.003"]["loss"].startswith("all weights 1")


@pytest.mark.usefixtures("as_users_call")
def test_the_rates_are_those_of_the_best_weights(study):
    search = searched(study).result()["search"]
    for process in arms.TUNED:
        runs = search[process]
        grid = {name: one for name, one in runs.items() if name.endswith("0.003")}
        best = min(grid, key=lambda name: grid[name]["bound"]["value"])
        weights = best.rpartition(",")[0]
        assert [name for name in runs if name not in grid] == [f"{weights}, 0.006"]
        assert arms.chosen_weights(study.result(), process, study.sizes) == weights


@pytest.mark.usefixtures("as_users_call")
def test_winners_are_measured_on_unseen_text(study):
    searched(study).winners()
    compared = study.result()["compared"]
    processes = [*arms.TUNED, *arms.UNTUNED]
    assert list(compared) == [f"{process}, 0" for process in processes]
    calls = {"masks": 128, "HDLM-64-8, all edges": 384}
    for name, one in compared.items():
        assert list(one["texts"]) == ["test", "sealed", "moby_dick", "faq"]
        sealed = one["texts"]["sealed"]
        assert sealed["chain"]["calls"] == calls.get(name.rpartition(",")[0], 256)
        assert len(sealed["nats"]) == len(sealed["chain"]["nats"]) == 2
        assert sealed["chain"]["nats_per_token"]["value"] > 0
    table = narrowing.narrowing(study.work, study.out, [0])
    assert len(table.splitlines()) == 2 + 3 * len(narrowing.TREES) and "nan" not in table
    before = study.out.read_bytes()
    for stage in (study.grid, study.rates, study.winners):
        stage()
    assert study.out.read_bytes() == before


@pytest.mark.usefixtures("as_users_call")
def test_samples_are_drawn_judged_and_compared_at_equal_entropy(study, tmp_path):
    searched(study).xi()
    cells = study.result()["cells"]
    assert list(cells) == [cell.name for cell in study.cells()] and len(cells) == 16
    assert all(0 < one["made"] <= one["calls"] for one in cells.values())
    assert {one["sampler"] for one in cells.values()} == {"ancestral", FORCED}
    study.judge(str(smoke.judge(tmp_path / "judge")))
    again = study.result()["cells"]
    for name, one in cells.items():
        assert again[name]["judged"]["corpus"] == one["judged"]["corpus"]
        assert again[name]["judged"]["judge"]["nats"]["value"] > 0
    whole = "\n".join(pages.samples_tables(study.result(), study.sizes))
    assert pages.MISSING not in whole and "2 a cell and seed, judged by judge" in whole
    before = study.out.read_bytes()
    study.xi()
    assert study.out.read_bytes() == before


@pytest.mark.usefixtures("as_users_call")
def test_the_judge_scores_all_positions_in_one_call(study):
    recipe = study.arms.judge()
    assert train(recipe)
    saved = open_saved(recipe.output.folder)
    data = open_prepared(study.work / "data")
    options = {"length": 128, "pad_id": data.fill_id, "batch_size": 3, "seed": 0, "threads": 0}
    batch = next(iter(examples(data.validation, **options)))
    scores = measurement.causal_scores(saved, batch.x, data.pad_id)
    order = make_order(saved, "left_to_right")
    chain, calls = read(saved.process, saved.denoiser, [batch], order, None, 3, pace=saved.pace)
    assert calls == 128
    torch.testing.assert_close(scores.nats, chain.nats[:, 0])
    torch.testing.assert_close(scores.tokens, chain.tokens)


def test_a_signal_ends_a_stage_and_later_stages_require_the_search(study, monkeypatch, tmp_path):
    empty = stages.Study(tmp_path, tmp_path / "results.json", study.sizes)
    monkeypatch.setattr(stages, "train", lambda recipe: False)
    with pytest.raises(stages.StoppedError, match=r"search-masks-optimal"):
        empty.grid()
    with pytest.raises(SystemExit, match="rates: the grid of masks is not finished"):
        empty.rates()
    with pytest.raises(SystemExit, match="masks: the search is not finished"):
        stages.Study(study.work, tmp_path / "results.json", study.sizes).winners()


def test_text_with_another_hash_is_refused(study, tmp_path):
    hashes = dict(study.hashes)
    texts.check(study.work, hashes)
    hashes["sealed"] = "0" * 64
    with pytest.raises(ValueError, match=r"unseen_sealed.jsonl has sha256 .*, must have 0000"):
        texts.check(study.work, hashes)
    other = tmp_path / "unseen.json"
    other.write_text(json.dumps(hashes))
    sealed = stages.Study(study.work, tmp_path / "results.json", arms.tiny(other))
    with pytest.raises(ValueError, match="committed before the runs"):
        sealed.winners()


def test_the_committed_hashes_name_all_unseen_texts():
    hashes = json.loads(texts.HASHES.read_text())
    assert list(hashes) == list(texts.COUNTS) == list(pages.TEXTS)[1:]
    assert all(len(sha256) == 64 for sha256 in hashes.values())


def test_documents_are_spaced_over_the_whole_text():
    assert texts.spaced([str(number) for number in range(10)], 4) == ["0", "2", "5", "7"]


def test_the_lowest_bound_chooses_weights_then_rate():
    sizes = Sizes(weights=("clip 2", "constant"), rates=(3e-3, 6e-3))
    bounds = {("clip 2", 3e-3): 5.1, ("constant", 3e-3): 5.0}
    runs = {Tuning(*key).name: {"bound": {"value": value}} for key, value in bounds.items()}
    result = {"search": {"HDLM-64": runs, "HDLM-64, all edges": {}}}
    assert arms.chosen_weights(result, "HDLM-64", sizes) == "constant"
    assert arms.chosen(result, "HDLM-64", sizes) is None
    assert arms.chosen_weights(result, "masks", sizes) is None
    runs["constant, 0.006"] = {"bound": {"value": 4.9}}
    result["search"]["HDLM-64, all edges"] = runs
    for process in ("HDLM-64", "xi = 0.9", "random tree, all edges"):
        assert arms.chosen(result, process, sizes) == Tuning("constant", 6e-3)


def test_gaps_are_those_of_runs_of_one_seed():
    sizes = Sizes(seeds=(0, 1, 2))

    def run_of(bound, chain):
        text = {"bound": {"value": bound}, "chain": {"nats_per_token": {"value": chain}}}
        return {"texts": dict.fromkeys(pages.TEXTS, text)}

    compared = {f"masks, {seed}": run_of(5.0 + seed, 4.9) for seed in (0, 1, 2)}
    compared |= {f"HDLM-64, {seed}": run_of(5.1 + 1.01 * seed, 4.95) for seed in (0, 1)}
    result = {"search": {}, "compared": compared}
    _, kind, test, sealed, *_ = pages.gaps_row(result, sizes, "HDLM-64", "masks", "bound")
    assert kind == "bound" and test == sealed
    assert test == "+0.1050 ± 0.0635 (2 of 3 seeds)"
    chains = pages.gaps_row(result, sizes, "HDLM-64", "masks", "chain")
    assert chains[2] == "-" and chains[3] == "+0.0500 ± 0.0000 (2 of 3 seeds)"
    missing = pages.gaps_row(result, sizes, "HDLM-64-8, all edges", "masks", "bound")
    assert missing[0] == "HDLM-64-8, all edges less masks" and missing[2] == pages.MISSING
    means = pages.bounds_row(result, sizes, "HDLM-64", "bound")
    assert means[1:3] == [pages.MISSING, "5.6050 (2 of 3 seeds)"]
    assert len(pages.bounds_row(result, sizes, "masks", "chain")) == 2 + 3


def test_texts_are_compared_at_equal_properties():
    draw = np.random.default_rng(0)
    text = np.repeat([0, 1, 2], 400)
    properties = draw.normal(size=(1200, 2)) + text[:, None]
    values = properties @ [0.1, -0.3] + 0.05 * (text == 1) + 0.01 * draw.normal(size=1200)
    plain = narrowing.differences(values, text, np.zeros((1200, 0)))
    equal = narrowing.differences(values, text, properties)
    assert [float(one.split()[0]) for one in plain] == pytest.approx([-0.15, -0.4], abs=0.05)
    found, error = (float(number) for number in equal[0].split(" ± "))
    assert found == pytest.approx(0.05, abs=3 * error) and 0 < error < 0.002


def test_nats_are_interpolated_between_entropies():
    points = [(4.0, 6.0), (3.0, 4.0)]
    assert pages.interpolated(points, 3.5) == pytest.approx(5.0)
    assert pages.interpolated(points, 4.01) == 6.0 and pages.interpolated(points, 2.99) == 4.0
    assert pages.interpolated(points, 4.1) != pages.interpolated(points, 4.1)  # NaN


def test_cells_are_compared_with_masks_of_their_seed():
    sizes = Sizes(noisy_seeds=(0, 1), calls=(8,), temperatures=(1.0,), mask_temperatures=(1.0, 0.5))

    def cell(entropy, nats):
        measured = {
            "nats": {"value": nats},
            "entropy": {"value": entropy},
            "distinct": {"2": 0.5},
        }
        return {"judged": {"corpus": measured}}

    cells = {}
    for seed, shift in enumerate((0.0, 1.0)):
        cells[Cell("masks", seed, "ancestral", 8, 1.0).name] = cell(4.0, 6.0 + shift)
        cells[Cell("masks", seed, "ancestral", 8, 0.5).name] = cell(3.0, 4.0 + shift)
        cells[Cell("xi = 0.9", seed, FORCED, 8, 1.0).name] = cell(3.5, 4.8 + 1.5 * shift)
    row = pages.equal_row({"cells": cells}, sizes, "corpus", "xi = 0.9", FORCED, 1.0)
    assert row == ["xi = 0.9", "forced", "1", "+0.050 ± 0.250"]
    del cells[Cell("xi = 0.9", 1, FORCED, 8, 1.0).name]
    row = pages.equal_row({"cells": cells}, sizes, "corpus", "xi = 0.9", FORCED, 1.0)
    assert row[-1] == pages.MISSING


def test_the_page_has_the_tables_of_the_results():
    study = stages.Study(Path("work"), run.RESULTS, Sizes())
    page = pages.PAGE.read_text(encoding="utf-8")
    assert pages.page_of(pages.PAGE, study.result(), study.sizes) == page, (
        "run python -m studies.weights.run pages"
    )


def test_a_command_without_its_arguments_is_refused(capsys, tmp_path):
    for words, message in (
        ([], "pass a command and WORK"),
        (["train"], "pass a command and WORK"),
        (["prepare", str(tmp_path)], "prepare: pass --packages"),
        (["judge", str(tmp_path)], "judge: pass --judge"),
    ):
        with pytest.raises(SystemExit):
            run.main(words)
        assert message in capsys.readouterr().err


def test_hours_are_estimated_for_every_stage(capsys, tmp_path):
    run.main(["estimate", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(stages.STAGES)
