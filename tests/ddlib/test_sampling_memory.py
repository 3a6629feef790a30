"""Sampling with the features of the previous call: whose they are, what they change, and where they
are refused.
"""

import pytest
import torch
from zoo.calls import seeded
from zoo.joints import PAIR_OF_FOUR
from zoo.processes import FOUR_TOKENS, presets

import ddlib as dd
from ddlib.contrib import Psi, ThetaTrapezoidal
from ddlib.samplers import (
    Ancestral,
    Confidence,
    Corrected,
    FirstHitting,
    ForwardBackward,
    LeftToRight,
    Remask,
)
from ddlib.samplers.controls import EndOfText, Settled
from ddlib.testing.oracle import exact_cavity

V = 4
LENGTH = 6
SAMPLERS = {
    "ancestral": Ancestral(),
    "first": FirstHitting(),
    "confidence": Confidence(),
    "left to right": LeftToRight(),
    "remask": Remask(0.5),
    "psi": Psi(0.7),
    "two calls": ThetaTrapezoidal(),
    "corrected": Corrected(Ancestral(), ForwardBackward(2.0)),
}
PROCESSES = presets([0, 0, 1, 1])


class Counting:
    """Network whose features are its logits, its states, and the number of calls of the row.

    The first token of a row is its name. A call must get the features of the row's previous one.
    """

    takes_memory = True

    def __init__(self, scale=1.0):
        self.last = {}
        self.calls = 0
        self.scale = scale

    def features(self, z, t, *, memory=None):
        before = torch.zeros(*z.shape, V + 2) if memory is None else memory
        for name, row in zip(z[:, 0].tolist(), before, strict=True):
            assert memory is None or torch.equal(row, self.last.get(name, torch.zeros_like(row)))
        count = before[..., -1:] + 1
        logits = torch.sin(
            self.scale * count * torch.arange(1.0, V + 1) + before[..., V : V + 1] + z[..., None]
        )
        found = torch.cat([logits, z[..., None].float(), count], -1)
        self.last |= {int(row[0, V]): row for row in found}
        self.calls += len(z)
        return found

    def output_weights(self):
        return torch.eye(V, V + 2), None

    def __call__(self, z, t):
        return self.features(z, t)[..., :V]


NAMES = torch.arange(V)[:, None]
"""Prompts that name the rows."""


def drawn(process, network, sampler=None, rows=slice(None), **options):
    names = NAMES[rows]
    seeds = list(range(7, 7 + V))[rows]
    options = {"controls": [dd.controls.Memory()]} | options
    return dd.sample(
        process, network, (len(names), LENGTH), sampler, 6, names, generator=seeds, **options
    )


def pairs(sampler, process):
    return not sampler.requires or isinstance(process, sampler.requires)


CASES = [(p, s) for p in PROCESSES for s in SAMPLERS if pairs(SAMPLERS[s], PROCESSES[p])]


@pytest.mark.parametrize(("process", "sampler"), CASES)
def test_a_row_gets_the_features_of_its_own_previous_call(process, sampler):
    network = Counting()
    x = drawn(PROCESSES[process], network, SAMPLERS[sampler])
    assert max(row[0, -1] for row in network.last.values()) > 1
    assert not torch.equal(x, drawn(PROCESSES[process], Counting(), SAMPLERS[sampler], controls=[]))


def test_rows_that_a_step_leaves_out_keep_theirs():
    network = Counting()
    drawn(PROCESSES["masked"], network)
    assert (
        len({int(row[0, -1]) for row in network.last.values()}) > 1
    )  # rows had different numbers of calls


@pytest.mark.parametrize(("process", "sampler"), CASES)
@pytest.mark.parametrize("endings", {"none": [], "end": [EndOfText(0)], "settled": [Settled(1.2)]})
def test_a_row_does_not_depend_on_the_batch(process, sampler, endings):
    endings = {"none": [], "end": [EndOfText(0)], "settled": [Settled(1.2)]}[endings]
    options = dict(controls=[dd.controls.Memory(), *endings])
    whole = drawn(PROCESSES[process], Counting(), SAMPLERS[sampler], **options)
    for row in (1, 3):
        alone = drawn(
            PROCESSES[process], Counting(), SAMPLERS[sampler], slice(row, row + 1), **options
        )
        assert torch.equal(alone[0], whole[row])


def test_at_a_time_per_position():
    network = Counting()
    network.own_times = True
    drawn(PROCESSES["hdlm"], network, pace=dd.paces.Ramp(1.0))
    assert network.calls > V


class Table:
    """The exact denoiser of two tokens, which ignores its memory."""

    takes_memory = True

    def __init__(self, process, joint=PAIR_OF_FOUR):
        self.of = exact_cavity(process, joint)

    def features(self, z, t, *, memory=None):
        assert memory is None or memory.shape == (*z.shape, V)
        return self.of(z, t)

    def output_weights(self):
        return torch.eye(V, dtype=torch.float64), None

    def __call__(self, z, t):
        return self.of(z, t)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("process", FOUR_TOKENS.values(), ids=FOUR_TOKENS)
def test_a_network_that_ignores_it_draws_the_same_tokens(process, sampler):
    tokens = [
        dd.sample(
            process,
            Table(process),
            (200, 2),
            sampler,
            4,
            generator=range(200),
            controls=[*([dd.controls.Memory()] if memory else [])],
        )
        for memory in (False, True)
    ]
    assert torch.equal(*tokens)


@pytest.mark.statistical
def test_the_distribution_is_that_of_the_calls_one_after_the_other():
    """From left to right the tokens are drawn by the calls 1 and 2: p(x) = softmax(l_1)_x1
    softmax(l_2)_x2.
    """
    table = torch.tensor([[1.0, 0.0, -1.0, 0.5], [-1.0, 2.0, 0.0, 0.3]])

    class Numbered(Counting):
        def features(self, z, t, *, memory=None):
            number = torch.zeros(*z.shape, 1) if memory is None else memory[..., -1:] + 1
            return torch.cat([table[number[..., 0].long()], number, number], -1)

    x = dd.sample(
        PROCESSES["masked"],
        Numbered(),
        (20_000, 2),
        LeftToRight(),
        2,
        generator=seeded(),
        controls=[dd.controls.Memory()],
    )
    counts = torch.bincount(4 * x[:, 0] + x[:, 1], minlength=16)
    expected = 20_000 * (table[0].softmax(0)[:, None] * table[1].softmax(0)).flatten()
    assert float(((counts - expected) ** 2 / expected).sum()) < 40  # 15 degrees of freedom
