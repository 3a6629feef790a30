"""Studies: pages agree with their result files."""

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import scipy.stats
import torch

import ddlib as dd
from recipes.config import recipe_yaml
from recipes.engine.checkpoint import name_of
from recipes.engine.setup import write_out
from recipes.model_io import RECIPE
from studies import pooled
from studies.deviations import run as deviations
from studies.page import less
from studies.runs import finished
from studies.tables import MISSING, interval
from studies.weights.arms import Arms, Sizes

ROOT = Path(__file__).parents[1]
PAGES = {
    file.parent.name: importlib.import_module(f"studies.{file.parent.name}.page").PAGE
    for file in sorted((ROOT / "studies").glob("*/page.py"))
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_the_stored_results(name):
    stored = json.loads((ROOT / "studies" / name / "results.json").read_text())
    page = (ROOT / "docs" / f"{PAGES[name].name}.md").read_text()
    assert PAGES[name].tables(stored) in page.partition(PAGES[name].marks[0])[2]


def test_a_page_is_written_from_its_results(tmp_path):
    page = PAGES["blocks"]
    copy = tmp_path / f"{page.name}.md"
    copy.parent.mkdir()
    text = (ROOT / "docs" / f"{page.name}.md").read_text()
    begin, end = page.marks
    before, _, rest = text.partition(begin)
    copy.write_text(f"{before}{begin}\nold\n{end}{rest.partition(end)[2]}")
    page.write(ROOT / "studies" / "blocks" / "results.json", tmp_path)
    assert copy.read_text() == text and (tmp_path / "images" / "blocks.png").exists()


def test_bounds_on_the_same_texts_are_compared():
    one = {"nats": [1.0, 3.0], "tokens": [2, 4]}
    found = less(one, one | {"nats": [0.0, 3.0]})
    assert found["value"] == pytest.approx(1 / 6) and found["standard_error"] > 0


def test_a_run_is_finished_if_its_checkpoint_is_of_the_same_recipe(tmp_path):
    recipe = Arms(tmp_path, Sizes()).judge()
    folder = recipe.output.folder
    assert not finished(recipe)
    (folder / "checkpoints" / name_of(recipe.steps)).mkdir(parents=True)
    assert recipe.loss["times"] is None  # a run writes out what its process decides
    (folder / RECIPE).write_text(recipe_yaml(replace(recipe, loss=write_out(recipe))))
    assert finished(recipe)
    assert not finished(replace(recipe, seed=recipe.seed + 1))
    assert not finished(replace(recipe, steps=recipe.steps + 1))


def test_deviations_of_the_bound_are_measured_and_the_page_holds_their_table():
    measured = deviations.row("masks", deviations.processes(8)["masks"], True, runs=4, sequences=8)
    assert measured["truth"] == pytest.approx(math.log(8), abs=1e-6) and measured["tails"][0] < 1
    assert "| masks | 9 | own density | 0." in deviations.rows({"runs": [measured]})
    stored = json.loads(deviations.RESULTS.read_text())
    assert deviations.rows(stored) in deviations.PAGE.read_text()
    own = [one for one in stored["runs"] if one["times"] == "own density"]
    assert all(0.92 <= one["covered"] <= 0.98 for one in own) and len(own) == len(
        deviations.processes()
    )


def test_shares_that_a_clip_keeps_have_their_closed_form():
    """Clip(c) of 1/t keeps min(1, c t).

    For two levels at gamma = 1 it keeps c over their flux, 1 - log(1 - t).
    """
    masks = dd.presets.mdlm(8)
    tree = dd.processes.Hierarchical(
        dd.hierarchies.Tree([torch.arange(64) // 8]), dd.schedules.Linear()
    )
    times = pooled.TIMES
    *at_times, total = pooled.kept_by_clip(masks, 2.0, "standard")
    assert at_times == pytest.approx([min(1, 2 * t) for t in times])
    assert total == pytest.approx(0.75, abs=1e-5)
    *at_times, total = pooled.kept_by_clip(tree, 2.0, "standard")
    noisy = [2 * t / (1 - math.log(1 - t)) for t in times]
    assert at_times == pytest.approx(noisy)
    assert total == pytest.approx(0.5, abs=1e-3)


def test_a_mean_over_runs_has_the_interval_of_student():
    runs = torch.randn(5, generator=torch.Generator().manual_seed(0)).tolist()
    low, high = scipy.stats.ttest_1samp(runs, 0.0).confidence_interval(0.95)
    half, middle = (high - low) / 2, (high + low) / 2
    assert interval(runs, 4, "+") == f"{middle:+.4f} ± {half:.4f}"
    assert interval(runs[:1]) == f"{runs[0]:.3f}, one seed" and interval([]) == MISSING
