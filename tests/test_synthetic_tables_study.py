"""Study of synthetic tables: its tables, generators and runs at tiny sizes, and the page."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from recipes.metrics.tables import Columns
from studies.synthetic_tables import baselines, pages, run
from studies.synthetic_tables.data import CODES, TABLES, Coder, split
from studies.synthetic_tables.diffusion import Diffusion, jumps, of_seconds, product
from studies.synthetic_tables.generators import GENERATORS, Task
from studies.synthetic_tables.settings import (
    AS_LONG,
    AS_OFTEN,
    EPOCHS,
    NOISES,
    STAGES,
    TINY,
    key_of,
    planned,
)

COLUMNS = Columns(("age", "city", "rank"), (16, 3, 4), (True, False, True))


def test_codes_keep_few_values_and_cut_many_at_quantiles_of_training():
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": generator.choice(["x", "y"], 500),
            "rank": generator.choice([1.0, 2.0, 7.0], 500),
            "income": np.where(generator.random(500) < 0.4, 0.0, generator.exponential(size=500)),
        }
    )
    coder = Coder(frame, ["city"])
    codes = coder.encode(frame)
    coder.columns.check("codes", codes)
    assert coder.columns.ordered == [False, True, True]
    assert coder.discrete == ["city", "rank"]
    assert (codes[:, 2] == 0).mean() == pytest.approx((frame["income"] == 0).mean(), abs=0.04)
    assert CODES * 0.55 < coder.columns.sizes[2] <= CODES
    income = codes[np.argsort(frame["income"]), 2]
    assert (np.diff(income) >= 0).all()
    other = pd.DataFrame({"city": ["y"] * 3, "rank": [0.0, 4.0, 99.0], "income": [-1.0, 0.5, 1e9]})
    assert coder.encode(other)[:, 1].tolist() == [0, 1, 2]
    assert coder.encode(other)[[0, 2], 2].tolist() == [0, coder.columns.sizes[2] - 1]
    with pytest.raises(ValueError, match="column 'city' has 'z'"):
        coder.encode(other.assign(city="z"))


def test_rows_are_split_once():
    frame = run.artificial()["bikes"].assign(bikers=np.arange(400))
    data = split(TABLES["bikes"], frame, 60)
    again = split(TABLES["bikes"], frame, 60)
    np.testing.assert_array_equal(data.held_out, again.held_out)
    assert len(data.held_out) == 60
    assert data.training["bikers"].nunique() == len(data.codes) == 340


@pytest.mark.parametrize("noise", NOISES)
def test_samples_take_a_step_for_every_jump(noise):
    process = product(COLUMNS, noise)
    kinds = [type(each).__name__ for each in process.every]
    assert kinds == (["Masked"] * 3 if noise == "masks" else ["Hierarchical", "Masked", "Masked"])
    diffusion = Diffusion(COLUMNS, noise, TINY.network)
    codes = np.zeros((20, 3), dtype=np.int64)
    diffusion.fit(codes, of_seconds(0.2), 0)
    entries, _ = process.sample_jump_times((50, 3), None, None)
    assert ((entries <= 1).sum((1, 2)) == jumps(COLUMNS, noise)).all()
    COLUMNS.check("samples", diffusion.sample(30, batch=20))


def test_the_bits_of_an_untrained_network_are_those_of_equal_shares():
    """Its output layers are 0."""
    torch.manual_seed(0)
    codes = np.stack([np.arange(600) % size for size in COLUMNS.sizes], 1)
    for noise in NOISES:
        diffusion = Diffusion(COLUMNS, noise, TINY.network)
        diffusion.fit(codes, of_seconds(1e-9), 0)
        bits = diffusion.bits(codes)
        want = np.log2(COLUMNS.sizes)
        assert bits["value"] == pytest.approx(want.sum(), abs=5 * bits["error"] + 1e-4)
        np.testing.assert_allclose(bits["columns"], want, atol=0.3)


def test_independent_columns_have_the_bits_of_their_frequencies():
    codes = np.array([[0, 0, 3], [0, 1, 3], [1, 1, 0]])
    bits = baselines.independent_bits(codes, codes, COLUMNS)
    # counts + 1/2 of age, city and rank in each row, over 3 + V / 2
    shares = np.array([[2.5, 1.5, 2.5], [2.5, 2.5, 2.5], [1.5, 2.5, 1.5]])
    costs = -np.log2(shares / np.array([11, 4.5, 5]))
    np.testing.assert_allclose(bits["columns"], costs.mean(0))
    assert bits["value"] == pytest.approx(costs.sum(1).mean())
    rows = baselines.independent(codes, COLUMNS, 3000, 0)
    np.testing.assert_allclose((rows == [0, 1, 3]).mean(0), 2 / 3, atol=0.04)
    assert np.corrcoef(rows[:, 0], rows[:, 2])[0, 1] == pytest.approx(0, abs=0.08)


def test_epochs_end_when_their_time_is_spent(monkeypatch):
    times = iter(range(100))
    monkeypatch.setattr(baselines.time, "process_time", lambda: next(times))
    bar = baselines._Until(3)
    assert [*bar(range(50), disable=True)] == [0, 1, 2]
    assert (bar.epochs, bar.spent) == (3, 3)


def test_masks_have_the_steps_or_the_seconds_of_an_earlier_run():
    data = split(TABLES["bikes"], run.artificial()["bikes"], 60)
    asked = []

    def facts_of(arm):
        asked.append(arm)
        return {"steps": 7.0, "seconds": 0.4}

    task = Task(data, TINY, 0, facts_of)
    often = GENERATORS[AS_OFTEN](task)
    assert often.facts["steps"] == 7
    long = GENERATORS[AS_LONG](task)
    assert 0.4 <= long.facts["seconds"] < 4
    assert asked == [EPOCHS, EPOCHS]
    for made in (often, long):
        data.columns.check("samples", made.samples)
        assert made.bits["value"] > 0


def test_masks_of_ctgans_seconds_follow_it_in_every_stage():
    runs = [
        key_of(name, arm, seed)
        for stage in STAGES
        for seed in stage.seeds
        for name in stage.tables
        for arm in stage.arms
    ]
    assert len(set(runs)) == len(runs)
    for place, key in enumerate(runs):
        name, arm, seed = key.split(" | ")
        assert arm in GENERATORS
        if arm in (AS_LONG, AS_OFTEN):
            assert key_of(name, EPOCHS, seed) in runs[:place]
    assert AS_OFTEN not in planned("diamonds")
    assert AS_OFTEN in planned("bikes")


def test_a_run_continues_and_fills_the_page(tmp_path):
    run.main(["--tiny", str(tmp_path)])
    path = tmp_path / "results.json"
    result = json.loads(path.read_text())
    stage = TINY.stages[0]
    assert len(result["runs"]) == len(stage.arms) * len(stage.seeds)
    assert result["runs"]["bikes | masks | 0"]["bits"]["value"] > 0
    text = (tmp_path / "synthetic_tables.md").read_text()
    assert "| not yet run |" in text  # CTGAN
    assert "| **floor**: held-out rows | 0." in text
    assert (tmp_path / "synthetic_tables_bikes_marginals.png").exists()
    kept = result["runs"].pop("bikes | independent columns | 1")
    path.write_text(json.dumps(result))
    run.main(["--tiny", str(tmp_path)])
    again = json.loads(path.read_text())["runs"]["bikes | independent columns | 1"]
    assert {**again, "facts": 0} == {**kept, "facts": 0}


def test_the_page_is_that_of_the_results():
    text = pages.PAGE.read_text(encoding="utf-8")
    assert run.page_of(pages.PAGE, run.stored(run.RESULTS)) == text
