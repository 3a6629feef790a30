"""Losses that were planned before the network ran: the same bits, and never of other noise."""

import fused_loss_inputs
import pytest
import torch
from fused_loss_inputs import NESTED

import ddlib as dd
from ddlib.kernels import api
from ddlib.kernels.dispatch import plan
from ddlib.weightings import Clip

PROCESSES = {
    "masks": dd.presets.mdlm(8),
    "clusters": dd.presets.hdlm(NESTED[0]),
    "four levels": dd.presets.hdlm_levels(NESTED),
    "xi": dd.presets.hdlm_levels(NESTED, xi=[1.0, 0.8, 1.0]),
    "gidd": dd.presets.gidd(8, 0.2),
}
CASES = [
    (name, mode, parameterization)
    for name, process in PROCESSES.items()
    for mode in process.modes
    for parameterization in ("cavity", "posterior", "children")
    if parameterization != "children" or process.hierarchy is not None
]


def inputs(name, parameterization):
    process = PROCESSES[name]
    tree = process.hierarchy if parameterization == "children" else None
    layer, batch = fused_loss_inputs.batch(process, tree)
    return process, layer, batch


def loss(process, layer, batch, planned=None, **options):
    output = dd.Hidden(*layer[:2], layer[2], planned=planned)
    value = dd.training_loss(process, output, *batch, **options)
    return [value, *torch.autograd.grad(value, layer)]


@pytest.fixture
def plans(monkeypatch):
    """How many losses made a plan."""
    calls = []

    def counted(*args):
        calls.append(args)
        return plan(*args)

    monkeypatch.setattr(api, "plan", counted)
    return calls


@pytest.mark.parametrize("name, mode, parameterization", CASES)
def test_a_planned_loss_is_the_loss(name, mode, parameterization, plans):
    process, layer, batch = inputs(name, parameterization)
    options = dict(weighting=Clip(2.0), mode=mode, parameterization=parameterization)
    expected = loss(process, layer, batch, **options)
    assert len(plans) == 1
    planned = dd.PlannedLoss.of(process, *batch, **options, dtype=torch.float64)
    for _ in range(2):
        found = loss(process, layer, batch, planned, **options)
        assert all(map(torch.equal, found, expected))
    assert len(plans) == 1
    options["reduction"] = "none"
    values = [
        dd.training_loss(process, dd.Hidden(*layer, planned=one), *batch, **options)
        for one in (planned, None)
    ]
    assert torch.equal(*values)


class Learned(dd.weightings.Weighting):
    """Weights times a number that is learned."""

    def __init__(self):
        self.factor = torch.ones((), dtype=torch.float64, requires_grad=True)

    def __call__(self, process, weight, x, z, t):
        return weight * self.factor


CHANGES = {
    "other states": lambda process, x, z, t: ((x, z.clone(), t), {}),
    "states changed in place": lambda process, x, z, t: ((x, z.copy_(x), t), {}),
    "other times": lambda process, x, z, t: ((x, z, t / 2), {}),
    "another mode": lambda process, x, z, t: ((x, z, t), {"mode": "hard"}),
    "another weighting": lambda process, x, z, t: ((x, z, t), {"weighting": Clip(3.0)}),
    "another output": lambda process, x, z, t: ((x, z, t), {"parameterization": "posterior"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_of_another_loss_is_not_used(change, plans):
    process, layer, batch = inputs("clusters", "cavity")
    planned = dd.PlannedLoss.of(process, *batch, dtype=torch.float64)
    batch, options = CHANGES[change](process, *batch)
    found = loss(process, layer, batch, planned, **options)
    assert len(plans) == 1
    assert all(map(torch.equal, found, loss(process, layer, batch, **options)))


def test_a_plan_of_another_process_or_type_is_not_used(plans):
    process, layer, batch = inputs("clusters", "cavity")
    faster = dd.presets.hdlm(NESTED[0], gamma=2.0)
    planned = dd.PlannedLoss.of(faster, *batch, dtype=torch.float64)
    expected = loss(process, layer, batch)
    assert all(map(torch.equal, loss(process, layer, batch, planned), expected))
    in_float32 = dd.PlannedLoss.of(process, *batch)
    assert all(map(torch.equal, loss(process, layer, batch, in_float32), expected))
    assert len(plans) == 3


def test_a_learned_weighting_is_evaluated_with_the_loss(plans):
    process, layer, batch = inputs("clusters", "cavity")
    weighting = Learned()
    planned = dd.PlannedLoss.of(process, *batch, weighting, dtype=torch.float64)
    with torch.no_grad():
        weighting.factor.fill_(2.0)
    found = loss(process, layer, batch, planned, weighting=weighting)[0].detach()
    assert float(found) == pytest.approx(2 * float(loss(process, layer, batch)[0].detach()))
    assert len(plans) == 2


def test_the_arguments_of_a_plan_are_checked():
    process, _, (x, z, t) = inputs("clusters", "cavity")
    with pytest.raises(ValueError, match="mode is 'soft', must be one of"):
        dd.PlannedLoss.of(process, x, z, t, mode="soft")
    with pytest.raises(ValueError, match="z has shape"):
        dd.PlannedLoss.of(process, x, z[:1], t)
    with torch.inference_mode():
        batch = (x.clone(), z.clone(), t.clone())
    assert dd.PlannedLoss.of(process, *batch).versions == (0, 0, 0)
