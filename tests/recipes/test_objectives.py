"""The contract of training objectives, for every one that is registered."""

import shutil
from dataclasses import replace

import pytest
import torch
from training_runs import check_resumption, curve, loss
from zoo.runs import ALONE, read_lines, recipe_in

from ddlib import registry
from recipes.engine import checkpoint, train
from recipes.engine.objectives.bound import Bound
from recipes.engine.run import Run

KEYS = {
    "along_order": dict(order="confidence", per_step=3),
    "reward": dict(reward="rewards_for_runs:share_of_low", group=2, sampling_steps=4),
}
"""Keys without a default."""
NETWORKS = {"memory": dict(memory=True)}
"""Arguments of networks that an objective requires."""


def keys_of(folder, kind):
    """Keys without a default, and files that they name."""
    if kind != "preference":
        return KEYS.get(kind, {})
    reference = run_of(folder, "bound", "reference")
    if not reference.output.folder.exists():
        assert train(reference)
    pairs = folder / "pairs.jsonl"
    pairs.write_text('{"prompt": [5, 6], "chosen": [20, 21], "rejected": [220, 221, 222]}\n')
    return dict(pairs=str(pairs), reference=str(reference.output.folder))


def run_of(folder, kind, name=None, **changes):
    base = recipe_in(folder, name or kind, steps=4, **changes)
    values = loss(kind=kind, **keys_of(folder, kind))
    output = replace(base.output, save_every=2, validate_every=4)
    model = base.model | NETWORKS.get(kind, {})
    process = dict(kind="hdlm", clusters=6)
    return replace(base, loss=values, output=output, model=model, process=process)


@pytest.mark.parametrize("kind", registry.available("objectives"))
def test_a_run_resumes_to_the_bit(folder, kind):
    run = run_of(folder, kind)
    assert train(run)
    again = run_of(folder, kind, f"{kind}-again")
    check_resumption(run, again, 4, 2)
    steps = [record for record in curve(run.output.folder) if record["kind"] == "train"]
    assert len(steps) == 4 and all(-1 <= record["loss"] < 60 for record in steps)


@pytest.mark.parametrize("kind", registry.available("objectives"))
def test_micro_batches_and_averages_are_those_of_the_engine(folder, kind):
    changes = dict(kind="dit", dim=16, depth=2, heads=2, cond_dim=8, pad_to=1)
    found = []
    for micro in (8, 2):
        run = run_of(folder, kind, f"{kind}-micro", model=changes)
        run = replace(run, hardware=replace(run.hardware, micro_batch=micro))
        prepared = Run.prepare(run, ALONE, writes=False)
        step = prepared.step(next(prepared.batches()), stop=False)
        last = [value.clone() for value in prepared.network.parameters()]
        with prepared.use_averages():
            average = [value.clone() for value in prepared.network.parameters()]
        assert all(map(torch.equal, last, prepared.network.parameters()))
        assert not all(map(torch.equal, last, average))
        found.append((step.loss, step.norm))
    assert found[0] == pytest.approx(found[1], rel=1e-4)


class Counting(Bound):
    """The bound, which counts its steps."""

    steps = 0

    def numbers_to_log(self):
        return {"counted": float(self.steps)}

    def after(self):
        self.steps += 1

    def tensors(self):
        return {"steps": torch.tensor(self.steps)}

    def load(self, state):
        self.steps = int(state["steps"])


def test_an_objective_from_outside_has_its_state_and_its_numbers_in_the_log(folder):
    run = run_of(folder, f"{__name__}:Counting", "counting")
    assert train(run)
    shutil.rmtree(checkpoint.list_checkpoints(run.output.folder / "checkpoints")[0])
    assert train(run)
    lines = read_lines(run.output.folder / "metrics.jsonl")
    records = [record for record in lines if record["kind"] == "train"]
    assert [record["counted"] for record in records] == [0.0, 1.0, 2.0, 3.0]


def test_an_unknown_kind_is_refused_with_the_nearest(folder):
    with pytest.raises(ValueError, match=r"loss.kind: .*'consistancy', did you mean 'consistency'"):
        loss(kind="consistancy")
