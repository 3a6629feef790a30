"""Runs that train along the order of a sampler: resumed, in any layout, and beside random noise."""

import shutil
from dataclasses import replace

import pytest
import torch
from refusals import refuses
from training_runs import (
    check_layout,
    check_resumption,
    curve,
    objective,  # noqa: F401  # in a table
    trained,
    trains,
)
from zoo.runs import ALONE, exact, recipe_in

from recipes.config import Hardware
from recipes.data import Batch
from recipes.engine import checkpoint, train
from recipes.engine.objectives.along_order import _spread
from recipes.engine.objectives.noising import add_noise
from recipes.engine.run import Run

ORDER = dict(
    kind="along_order", order="confidence:temperature=0.1", per_step=3, share=0.75, mode="edges"
)
LEFT = dict(kind="along_order", order="left_to_right")


def order_run(folder, name, loss=ORDER, **changes):
    return exact(recipe_in(folder, name, loss=loss, **changes))


whole = trains(order_run)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.3, 1.0])
def test_rows_at_random_noise_are_a_share_evenly_spread(share):
    found = _spread(40, share)
    assert int(found.sum()) == round(40 * share)
    assert all(abs(int(part.sum()) - 10 * share) <= 1 for part in found.split(10))


def test_rows_at_random_noise_have_the_times_of_their_noise(folder):
    run = Run.prepare(order_run(folder, "times"), ALONE)
    batches = next(run.batches())
    [batch], [noisy] = batches, run.state.objective.prepare(batches, 0)
    random = _spread(8, 1 - ORDER["share"])
    some = Batch(batch.x[random], batch.mask[random], batch.free[random], torch.arange(2))
    assert torch.equal(
        noisy.t[random], add_noise(run.process, some, run.recipe.seed, 0).t.to(noisy.t)
    )
    assert torch.equal(noisy.t[~random], noisy.rows.t[~random])


def test_a_run_resumes_with_the_same_numbers(folder, whole):
    check_resumption(whole, order_run(folder, "again"), 20, 16)


@pytest.mark.parametrize(
    ("size", "hardware"),
    [
        pytest.param(1, Hardware(micro_batch=2, threads=1), id="accumulated"),
        pytest.param(2, Hardware(threads=1), id="copies"),
        pytest.param(
            2,
            Hardware(shard=True, micro_batch=2, threads=1),
            id="shards",
        ),
    ],
)
def test_the_layout_changes_no_number(folder, whole, size, hardware):
    run = replace(
        order_run(folder, f"{size}-{hardware.shard}-{hardware.micro_batch}"), hardware=hardware
    )
    check_layout(run, size, whole)
    shutil.rmtree(checkpoint.list_checkpoints(run.output.folder / "checkpoints")[0])
    before = curve(run.output.folder)
    assert curve(trained(run, size)) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(process=dict(kind="gidd", p_uniform=0.2)),
            r"loss.order=LeftToRight.*: an order needs a process with levels",
        ),
        (dict(loss=LEFT | dict(order="ancestral")), r"loss.order=Ancestral.*: order is Ancestral"),
        (
            dict(loss=LEFT | dict(order="confidence:per_step=expected")),
            "must choose without a time grid",
        ),
        (dict(pace="blocks:size=4"), "loss.kind=along_order: not with pace"),
    ],
)
def test_options_without_an_order_are_refused_before_training(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        train(order_run(folder, "refused", **(dict(loss=LEFT) | changes)))


test_bad_values_are_refused_with_their_name = refuses(r"""
    objective(**dict(LEFT, order="confidance")) | ValueError | loss.order.*confidance.*confidence
    objective(**dict(LEFT, order="confidence:score=best")) | ValueError | score is 'best'
    objective(**LEFT, per_step=0) | ValueError | per_step=0
    objective(**LEFT, share=0.0) | ValueError | share=0.0: must lie in
    objective(**LEFT, interval=(0.1, 0.9))
        | ValueError | interval=\(0\.1, 0\.9\): not with loss.kind=along_order and
    objective(**LEFT, levels="balanced") | ValueError
        | levels='balanced': not with loss.kind=along_order
""")
