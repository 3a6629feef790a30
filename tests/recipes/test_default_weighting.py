"""Training loss of a recipe that states no weighting."""

import re

import numpy as np
import pytest
import torch
from training_runs import curve, loss
from zoo.runs import ALONE, recipe_in

import ddlib as dd
from recipes.config import Data, Hardware, Optimizer, Output, Recipe
from recipes.config.command import choose
from recipes.data import prepare_ids
from recipes.engine import train
from recipes.engine.objectives.bound import Bound
from recipes.engine.run import Run
from recipes.model_io import RECIPE
from recipes.papers import smoke

CLIPPED, BOUND = ({"kind": "clip", "high": high, "low": 0.0} for high in (2.0, None))
EVENTS = 10


class Paper(dd.processes.Uniform):
    """A process of a paper that clips at 5."""

    training_weighting = "clip:5"


@pytest.mark.parametrize(
    ("kind", "weighting", "times"),
    [
        *((kind, CLIPPED, "uniform") for kind in ("mdlm", "masked", "gidd", "hdlm", "hdlm-levels")),
        ("ddlib.processes:Masked", CLIPPED, "uniform"),
        (f"{__name__}:Paper", CLIPPED | {"high": 5.0}, "uniform"),
        *(
            (kind, BOUND, "optimal")
            for kind in ("uniform", "rate_matrix", "hierarchical", "noisy", "staged")
        ),
    ],
)
def test_a_published_process_has_the_clip_of_its_paper_and_any_other_the_bound(
    kind, weighting, times
):
    values = Bound.write_out(loss(), kind)
    assert (values["weighting"], values["times"]) == (weighting, times)
    assert Bound.write_out(values, "mdlm") == values


def test_values_of_the_recipe_are_unchanged():
    own = Bound.write_out(loss(weighting="clip:3"), "uniform")
    assert own == loss(weighting="clip:3", times="uniform")
    own = Bound.write_out(loss(times="bell"), "uniform")
    assert own == loss(weighting="clip", times="bell")
    # another density would be other weights
    assert Bound.write_out(loss(weigh_times=False), "uniform")["times"] == "uniform"


def test_another_process_on_the_command_line_has_its_own_default(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "{data: {folder: none}, process: {kind: uniform, schedule: linear}, output: {folder: run}, "
        "batch: 2, steps: 2, "
        "model: {kind: dit, dim: 8, depth: 1, heads: 1}}"
    )
    given, _ = choose({}, smoke, "train", ["--recipe", str(path), "--process", "mdlm"])
    assert Bound.write_out(given.loss, given.process["kind"])["weighting"] == CLIPPED
    given, _ = choose({}, smoke, "train", ["--recipe", str(path), "--loss.weighting", "clip:7"])
    assert given.loss["weighting"]["high"] == 7.0
    with pytest.raises(
        ValueError, match=r"--loss.weighting.high: the recipe sets no loss.weighting; choose one by"
    ):
        choose({}, smoke, "train", ["--recipe", str(path), "--loss.weighting.high", "7"])


def test_the_file_of_a_run_has_every_value(tmp_path):
    given = recipe_in(tmp_path, process={"kind": "uniform", "schedule": "linear"})
    run = Run.prepare(given, ALONE)
    assert run.recipe.loss == loss(weighting="clip", times="optimal")
    assert run.state.objective.density is not None
    assert Run.prepare(run.recipe, ALONE).facts == run.facts


def drifting(folder, name, loss):
    """A run on events that repeat or move to the next one, under noise that moves to the next one
    or to a mask.
    """
    random = np.random.default_rng(0)
    moves = random.random((400, 23)) < 0.6
    rows = (
        random.integers(0, EVENTS, (400, 1)) + np.pad(moves, ((0, 0), (1, 0))).cumsum(1)
    ) % EVENTS
    if not (folder / "data").exists():
        prepare_ids(rows, 64, EVENTS, folder / "data")
    rates = torch.zeros(EVENTS + 1, EVENTS + 1)
    tokens = torch.arange(EVENTS)
    rates[tokens, (tokens + 1) % EVENTS] = 2.0
    rates[tokens, EVENTS] = 1.0
    rates[tokens, tokens] = -3.0
    return Recipe(
        data=Data(folder=folder / "data", length=24),
        process={
            "kind": "rate_matrix",
            "matrix": rates.tolist(),
            "schedule": "linear",
            "vocab_size": EVENTS,
        },
        model={"kind": "dit", "dim": 32, "depth": 2, "heads": 2, "cond_dim": 16, "pad_to": 1},
        loss=loss,
        optimizer=Optimizer(lr=1e-2, warmup=5, ema=0.0),
        hardware=Hardware(threads=1),
        output=Output(
            folder=folder / name,
            log_every=100,
            validate_every=200,
            validate_sequences=64,
            sample_every=200,
            samples=1,
            sample_steps=4,
            save_every=200,
            tensorboard=False,
        ),
        batch=16,
        steps=200,
        seed=1,
    )


@pytest.mark.statistical
def test_a_process_of_ones_own_is_trained_better_by_default_than_with_the_clip_of_papers(tmp_path):
    bounds = {}
    for name, values in (("default", loss()), ("clipped", loss(weighting="clip:2"))):
        given = drifting(tmp_path, name, values)
        assert train(given)
        bounds[name] = next(
            record for record in curve(given.output.folder) if record["kind"] == "bound"
        )
    # 1.567 ± 0.073 and 2.010 ± 0.100
    assert bounds["default"]["nats_per_token"] + 4 * bounds["default"]["standard_error"] < np.log(
        EVENTS
    )
    assert bounds["default"]["nats_per_token"] + 0.2 < bounds["clipped"]["nats_per_token"]
    assert "high: null" in (tmp_path / "default" / RECIPE).read_text()


@pytest.mark.parametrize(("limit", "clipped"), [("clip:0.5", True), ("clip:2", False)])
def test_a_run_whose_weights_are_mostly_clipped_prints_their_share_once(
    tmp_path, capsys, limit, clipped
):
    given = recipe_in(
        tmp_path,
        process="mdlm",
        loss=dict(weighting=limit),
        steps=3,
    )
    train(given)
    found = re.findall(
        r"loss.weighting clips (\d+) % of the weights of noisy tokens at 0.5",
        capsys.readouterr().out,
    )
    assert found == ["100"] * clipped
