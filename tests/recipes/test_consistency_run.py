"""Runs with the consistency loss: killed, resumed, on two ranks, packed, by blocks, from a trained
run; refusals.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from refusals import refuses
from test_engine_reliability import killed_and_finished
from training_runs import check_layout, check_resumption, curve, losses, objective, trained
from zoo.runs import batch_of, exact, recipe, recipe_in

import ddlib as dd
from recipes.config import Hardware
from recipes.data import local, prepare
from recipes.engine import train
from recipes.engine.objectives import consistency
from recipes.engine.objectives.consistency import earlier
from recipes.engine.objectives.noising import add_noise
from recipes.model_io import open_saved

CONSISTENT = dict(kind="consistency", weight=0.5)


@pytest.fixture(scope="module")
def whole(folder):
    """The run that nothing happened to."""
    train(consistent_run(folder, "whole"))
    return folder / "whole"


def consistent_run(folder, name, **changes):
    return recipe_in(folder, name, **dict(loss=CONSISTENT, steps=8) | changes)


def test_it_adds_to_the_loss_and_goes_on_from_a_checkpoint(folder, whole):
    check_resumption(consistent_run(folder, "whole"), consistent_run(folder, "again"), 8, 4)
    assert len(losses(whole)) == 8
    train(consistent_run(folder, "doubled", loss=CONSISTENT | dict(weight=1.0), steps=1))
    train(consistent_run(folder, "half", steps=1))
    train(consistent_run(folder, "tiny", loss=CONSISTENT | dict(weight=1e-9), steps=1))
    one, half, none = (losses(folder / name)[0] for name in ("doubled", "half", "tiny"))
    assert one - half == pytest.approx(half - none, rel=1e-4) and half - none > 0.05


@pytest.mark.parametrize("size", [1, 2])
def test_killed_and_started_again_it_makes_the_same_run(folder, whole, size):
    hardware = Hardware(threads=1, shard=size == 2)
    untouched = whole
    if size == 2:
        untouched = trained(consistent_run(folder, "pair", hardware=hardware), 2)
    run = consistent_run(folder, f"killed-{size}", hardware=hardware)
    assert killed_and_finished(run, size, 5, in_a_save=False) > 0
    assert curve(run.output.folder) == curve(untouched)


LAYOUTS = {
    "accumulated": (1, Hardware(micro_batch=2, threads=1)),
    "copies, accumulated": (2, Hardware(micro_batch=2, threads=1)),
    "shards": (2, Hardware(shard=True, threads=1)),
    "shards, accumulated": (2, Hardware(shard=True, micro_batch=2, threads=1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_changes_no_number(folder, name):
    plain = exact(consistent_run(folder, "plain"))
    if not plain.output.folder.exists():
        train(plain)
    size, hardware = LAYOUTS[name]
    run = exact(consistent_run(folder, name.replace(", ", "-"), hardware=hardware))
    check_layout(run, size, plain)
    weights, wanted = (open_saved(each.output.folder).model.state_dict() for each in (run, plain))
    assert all(torch.allclose(weights[key], wanted[key], atol=1e-4) for key in wanted)


@pytest.mark.parametrize("chunk", [1, 2 * 16 * 302])
def test_some_sequences_at_a_time_change_no_number(folder, whole, monkeypatch, chunk):
    monkeypatch.setattr(consistency, "CHUNK", chunk)
    train(consistent_run(folder, f"chunks-{chunk}"))
    made = losses(folder / f"chunks-{chunk}")
    wanted = losses(whole)
    assert torch.allclose(torch.tensor(made), torch.tensor(wanted), rtol=0, atol=1e-5)


KINDS = {
    "masks": dict(process=dict(kind="mdlm")),
    "gidd": dict(process=dict(kind="gidd", p_uniform=0.2)),
    "uniform": dict(process=dict(kind="uniform", schedule="linear")),
    "posterior": dict(
        loss=CONSISTENT | dict(parameterization="posterior", divergence="reverse_kl")
    ),
    "children": dict(
        process=dict(kind="hdlm", clusters=6),
        model=dict(kind="dit", dim=16, depth=2, heads=2, cond_dim=8, pad_to=1, head="children"),
    ),
    "interval": dict(loss=CONSISTENT | dict(interval=(0.1, 0.9), divergence="jensen_shannon")),
    "by blocks": dict(pace="blocks:size=4"),
    "ramp": dict(pace="ramp:lag=1"),
}


@pytest.mark.parametrize("name", KINDS)
def test_any_process_head_and_pace(folder, name):
    train(consistent_run(folder, f"kind-{name}", steps=2, **KINDS[name]))
    made = losses(folder / f"kind-{name}")
    assert len(made) == 2 and all(0 < loss < 60 for loss in made)


def test_packed_rows(folder):
    run = consistent_run(folder, "packed", steps=6)
    run = exact(replace(run, data=replace(run.data, packed=True, length=48)))
    train(run)
    again = replace(
        run,
        output=replace(run.output, folder=folder / "packed-2"),
        hardware=Hardware(micro_batch=2),
    )
    check_layout(again, 1, run)


def test_a_start_from_a_trained_run(folder):
    before = consistent_run(folder, "before", loss=dict())
    train(before)
    after = consistent_run(folder, "after", start=str(before.output.folder), steps=4)
    train(after)
    first = losses(before.output.folder)[0]
    last = losses(after.output.folder)[-1]
    assert last < first + 0.5 and len(losses(after.output.folder)) == 4


def drawn(process, rows, pace=None, seed=0):
    torch.manual_seed(0)
    x = torch.randint(process.vocab_size, (8, 6))
    batch = batch_of(x[rows], torch.arange(8)[rows])
    given = objective(**CONSISTENT)
    given.setting = SimpleNamespace(process=process, recipe=SimpleNamespace(seed=seed))
    late = given.bridge(add_noise(process, batch, seed, 3, given, None, pace), batch, 3)
    return late, late.early


@pytest.mark.parametrize("pace", [None, dd.paces.Blocks(2), dd.paces.Ramp(1.0)], ids=repr)
def test_paths_depend_on_the_example_alone_and_go_back_in_time(pace):
    process = dd.presets.mdlm(5)
    late, early = drawn(process, slice(0, 8), pace)
    for i in range(0, 8, 2):
        part, before = drawn(process, slice(i, i + 2), pace)
        assert torch.equal(part.z, late.z[i : i + 2]) and torch.equal(part.t, late.t[i : i + 2])
        assert torch.equal(before.z, early.z[i : i + 2]) and torch.equal(
            before.t, early.t[i : i + 2]
        )
    assert (early.t <= late.t).all() and (early.t < late.t)[late.measure > 0].all()
    assert ((late.z == 5) | (early.z == late.z)).all() and torch.equal(late.x, early.x)
    if pace is not None:
        still = late.measure == 0
        assert torch.equal(early.t[still], late.t[still])


def test_given_tokens_of_a_product_are_held_as_its_states():
    parts = {"a": dd.presets.mdlm(3), "b": dd.processes.Uniform(5, dd.schedules.Linear())}
    process = dd.processes.Product(parts, ["a", "b", "b", "a"])
    torch.manual_seed(0)
    x = torch.stack([torch.randint(sizes, (8,)) for sizes in (3, 5, 5, 3)], 1)
    free = torch.rand(x.shape) < 0.5
    batch = replace(batch_of(x), free=free)
    made = objective(**CONSISTENT)
    made.setting = SimpleNamespace(process=process, recipe=SimpleNamespace(seed=0))
    late = made.bridge(add_noise(process, batch, 0, 3, made), batch, 3)
    states = process.tokens_as_states(x)
    assert (states != x).any() and not free.all()
    for noisy in (late, late.early):
        assert torch.equal(noisy.z[~free], states[~free])


def test_earlier_times():
    t = torch.tensor([0.5, 0.8, 0.25, 1e-3])
    chance = torch.tensor([[0.5, 0.9], [1 - 1e-12, 0.9], [0.3, 0.1], [0, 0.9]])
    s = earlier(t, t > 0, chance.double(), 1e-3, 0.25)
    assert (
        torch.allclose(s, torch.tensor([0.2505, 0.0, 0.0, 0.0]), atol=1e-6)
        and (s < t).all()
        and s.dtype == t.dtype
    )
    own = torch.tensor([[0.0, 0.5, 1.0], [1.0, 1.0, 1.0]])
    fixed = torch.tensor([[0.5, 0.9], [0.5, 0.9]]).double()
    moves = torch.tensor([[False, True, False], [False, False, False]])
    assert earlier(own, moves, fixed, 0.0, 0.25).tolist() == [[0.0, 0.25, 1.0], [0.5, 0.5, 0.5]]
    every = earlier(torch.rand(1000), torch.ones(1000) > 0, torch.rand(1000, 2).double(), 0.0, 0.3)
    assert 0.2 < (every == 0).double().mean() < 0.4


def test_the_description_of_the_loss_names_the_option():
    assert "0.5 x the consistency loss (forward_kl) added" in objective(**CONSISTENT).about()
    assert "consistency" not in objective().about()


test_bad_values = refuses(r"""
    objective(kind="consistency", weight=-1.0) | ValueError | weight=-1.0: must be at least 0
    objective(kind="consistency", levels="balanced") | ValueError
        | levels='balanced': not with loss.kind=consistency
    objective(kind="consistency", anchor=1.5) | ValueError | anchor=1.5: must lie in \[0, 1\]
""")


def test_without_an_average_there_is_no_teacher(folder):
    run = consistent_run(folder, "none")
    with pytest.raises(
        ValueError, match=r"loss.kind=consistency: its teacher is the average .* optimizer.ema=0"
    ):
        replace(run, optimizer=replace(run.optimizer, ema=0.0))


def test_a_start_from_another_vocabulary_is_refused(folder, tmp_path):
    before = consistent_run(folder, "before-other", loss=dict(), steps=1)
    train(before)
    (tmp_path / "text.txt").write_text(
        "\n".join(f"{number}. The state of the union" for number in range(40))
    )
    corpus = local(str(tmp_path / "text.txt"), "train:270", held_out=5)
    prepare(corpus, tmp_path / "data")
    other = recipe(
        tmp_path / "data", tmp_path / "run", loss=CONSISTENT, start=str(before.output.folder)
    )
    other = replace(other, data=replace(other.data, corpus=corpus))
    with pytest.raises(ValueError, match="start="):
        train(other)
