"""Runs that learn the speeds of their noise: resumed, published, read back, stopped."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_runs import losses, recipe, text, trained

import ddlib as dd
from ddlib_models.io.manifest import ManifestError
from recipes.config import Data, Hardware
from recipes.engine import checkpoint, train
from recipes.engine.parallel import World
from recipes.engine.speeds import Speeds
from recipes.evaluate import Options, evaluate
from recipes.model_io import SPEEDS, WEIGHTS, open_saved

DATA = Path("text")
ALONE = World(0, 1, torch.device("cpu"))
NOISE = {
    "hdlm": dict(kind="hdlm", clusters=6, gamma=2.0, learn_speeds=True),
    "tree": dict(
        kind="hierarchical",
        hierarchy=dict(kind="tree", clusters=6, learn_speeds=True),
        schedule="cosine",
    ),
    "genmd4": dict(kind="genmd4", ratio=2.0),
}


def given(folder, name="hdlm", lr=0.05, **changes):
    """Recipe of a run; its text does not exist yet."""
    base = recipe(DATA, folder / name)
    return replace(
        base, process=NOISE[name], optimizer=replace(base.optimizer, speeds_lr=lr), **changes
    )


@pytest.fixture
def prepared(tmp_path_factory, monkeypatch):
    """The text, once for all tests."""
    folder = tmp_path_factory.getbasetemp() / "text of learned speeds"
    monkeypatch.setattr(sys.modules[__name__], "DATA", text(folder))


def learned(folder):
    process = open_saved(folder).process
    (found,) = process.parameters()
    assert not found.requires_grad  # what is measured and sampled from is constant
    return found


@pytest.mark.usefixtures("prepared")
def test_a_run_learns_and_publishes_its_speeds(tmp_path, capsys):
    run = given(tmp_path, steps=6)
    train(run)
    saved = open_saved(run.output.folder)
    assert saved.process.hierarchy.speeds != pytest.approx((2.0, 1.0), rel=1e-3)
    now = ", ".join(f"{speed:.4g}" for speed in saved.process.hierarchy.speeds)
    assert f"step 6: speed learned({now})" in " ".join(capsys.readouterr().out.split())
    (run.output.folder / WEIGHTS / SPEEDS).write_bytes(b"")
    with pytest.raises(ManifestError, match=SPEEDS):
        open_saved(run.output.folder)


@pytest.mark.usefixtures("prepared")
def test_another_run_starts_from_the_learned_speeds(tmp_path):
    train(given(tmp_path / "first", steps=3))
    speeds = learned(tmp_path / "first" / "hdlm")
    assert open_saved(tmp_path / "first" / "hdlm").process.hierarchy.speeds != pytest.approx(
        (2.0, 1.0), rel=1e-3
    )
    train(given(tmp_path / "second", steps=1, lr=0.0, start=str(tmp_path / "first" / "hdlm")))
    assert torch.equal(learned(tmp_path / "second" / "hdlm"), speeds)


@pytest.mark.usefixtures("prepared")
def test_nothing_is_written_where_nothing_is_learned(tmp_path):
    run = replace(given(tmp_path, steps=2), process=NOISE["hdlm"] | {"learn_speeds": False})
    train(run)
    assert not (run.output.folder / WEIGHTS / SPEEDS).exists()
    assert not list(open_saved(run.output.folder).process.parameters())


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.usefixtures("prepared")
def test_resumed_it_learns_the_same(name, tmp_path):
    run = given(tmp_path, name)
    train(run)
    folder = run.output.folder
    curve = losses(run.output.folder)
    whole = learned(folder)
    shutil.rmtree(checkpoint.found(folder / "checkpoints")[0])
    train(run)  # from step 16
    assert torch.equal(learned(folder), whole) and losses(folder) == curve
    result = evaluate(
        Options(run=str(folder), scorer="none", replicates=1, samples=2, batch=4), ALONE
    )
    assert 0 < result["bound"]["nats_per_token"]["value"] < 8


@pytest.mark.parametrize(
    "hardware", [Hardware(threads=1), Hardware(shard=True, threads=1)], ids=["copies", "shards"]
)
@pytest.mark.usefixtures("prepared")
def test_the_layout_changes_no_number(hardware, tmp_path):
    """A few steps: the network's rounding reaches the speeds, and through them each step makes more
    of it.
    """
    alone = trained(given(tmp_path / "one", steps=4))
    two = trained(given(tmp_path / "two", steps=4, hardware=hardware), 2)
    assert torch.allclose(torch.tensor(losses(two)), torch.tensor(losses(alone)), rtol=0, atol=5e-5)
    assert torch.allclose(learned(two), learned(alone), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("prepared")
def test_a_speed_that_goes_to_nothing_stops_the_run(tmp_path):
    run = given(tmp_path, lr=30.0, steps=3)
    with pytest.raises(
        ValueError, match=r"speed\[[01]\] has the learned value .*, must stay in \[0.001, 1000\]"
    ):
        train(run)


def test_packed_text_is_refused(tmp_path):
    run = given(tmp_path)
    packed = replace(
        run, data=Data(corpus=run.data.corpus, folder=run.data.folder, length=16, packed=True)
    )
    with pytest.raises(ValueError, match=r"process\.learn_speeds: not with data\.packed"):
        Speeds.of(dd.presets.hdlm([0, 0, 1], learn_speeds=True), packed)
    with pytest.raises(ValueError, match=r"speeds_lr=-1\.0: must be at least 0"):
        given(tmp_path, lr=-1.0)


def test_while_a_step_is_made_they_are_constants(tmp_path):
    process = dd.presets.hdlm([0, 0, 1], learn_speeds=True)
    speeds = Speeds.of(process, given(tmp_path))
    with speeds.held():
        assert not process.occupancies(torch.tensor([0.5])).requires_grad
    assert process.occupancies(torch.tensor([0.5])).requires_grad
    assert Speeds.of(dd.presets.mdlm(3), given(tmp_path)) is None
