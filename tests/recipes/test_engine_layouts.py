"""One process, two with copies, two with shards, accumulated gradients: the same training."""

from dataclasses import replace

import pytest
import torch
from training_runs import check_layout, curve, losses, trained
from zoo.runs import exact, recipe_in

from benchmarks import profile
from benchmarks.profile import TINY_PROFILE
from recipes.config import Hardware
from recipes.model_io import open_saved

# two runs at once, in separate processes; of the fast tests packed rows are accumulated, and ranks
# evaluate

LAYOUTS = {
    "accumulated": (1, Hardware(micro_batch=2, threads=1)),
    "recomputed": (1, Hardware(recompute=True, threads=1)),
    "copies": (2, Hardware(threads=1)),
    "copies, accumulated": (2, Hardware(micro_batch=2, threads=1)),
    "shards": (2, Hardware(shard=True, threads=1)),
    "shards, accumulated": (2, Hardware(shard=True, micro_batch=2, threads=1)),
}


@pytest.fixture(scope="module")
def plain(folder):
    run = exact(recipe_in(folder, "plain"))
    trained(run)
    return run


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_changes_no_number(folder, plain, name):
    size, hardware = LAYOUTS[name]
    run = replace(exact(recipe_in(folder, name.replace(", ", "-"))), hardware=hardware)
    check_layout(run, size, plain)
    folders = (run.output.folder, plain.output.folder)
    assert len(losses(folders[0])) == 20
    bounds, before = ([r for r in curve(path) if r["kind"] == "bound"] for path in folders)
    for one, two in zip(bounds, before, strict=True):
        assert one["sequences"] == two["sequences"] == 24
        assert abs(one["nats_per_token"] - two["nats_per_token"]) < 1e-4
    weights, wanted = (open_saved(path).model.state_dict() for path in folders)
    assert weights.keys() == wanted.keys()
    assert all(torch.allclose(weights[key], wanted[key], atol=1e-4) for key in wanted)


def test_weights_of_one_block_at_a_time_have_no_joint_product():
    with pytest.raises(ValueError, match=r"model.joint_modulation=True: not with hardware.shard"):
        profile.run(TINY_PROFILE, {"model.joint_modulation": True, "hardware.shard": True})


def test_another_number_of_processes_goes_on_with_the_same_data(folder, plain):
    run = exact(recipe_in(folder, "grown"))
    half = replace(run, output=replace(run.output, save_every=10))
    stopped = trained(replace(half, steps=10), 2)
    assert len(losses(stopped)) == 10
    trained(
        half, 1, accept_changes=True
    )  # the number of steps changed too, and with it the learning rate
    assert len(losses(stopped)) == 20
    assert torch.allclose(
        torch.tensor(losses(stopped)[:4]),
        torch.tensor(losses(plain.output.folder)[:4]),
        rtol=0,
        atol=1e-5,
    )
    assert [r["tokens"] for r in curve(stopped) if r["kind"] == "train"] == [8 * 16] * 20
