"""Processes, samplers, networks and joint distributions that several test files use, and how they
sample with them.
"""

import itertools

import pytest
import torch
from refusals import NAMES
from torch.nn.functional import linear

import ddlib as dd
from ddlib.hierarchies import Tree
from ddlib.processes import GIDD, Hierarchical, Masked, Uniform, unchanged
from ddlib.samplers import (
    Ancestral,
    EdgeBalance,
    FirstHitting,
    ForwardBackward,
    Gibbs,
    SamplingContext,
    SelfCorrection,
)
from ddlib.samplers.runtime.model import Model
from ddlib.schedules import Cosine, Geometric
from ddlib.verification.framework.inputs import frequencies, tally

F64 = torch.float64
PARENTS = [0, 0, 1, 1, 2, 3]
ABOVE = [0, 1, 1, 0]
V = 6
D = 5
LEVELS = {
    "masked": Masked(V, Cosine()),
    "hdlm": dd.presets.hdlm(PARENTS, gamma=2.0),
    "hdlm-xi": dd.presets.hdlm(PARENTS, xi=0.5),
    "levels": dd.presets.hdlm_levels([PARENTS, ABOVE]),
    "levels-xi": dd.presets.hdlm_levels([PARENTS, ABOVE], xi=[0.5, 0.6]),
    "levels-xi-below": dd.presets.hdlm_levels([PARENTS, ABOVE], xi=[0.5, 1.0]),
    "levels-xi-above": dd.presets.hdlm_levels([PARENTS, ABOVE], xi=[1.0, 0.6]),
    "geometric": Hierarchical(Tree([PARENTS, ABOVE], xi=[1.0, 0.6]), Geometric(0.2, 30.0)),
}
"""Processes with levels over six tokens."""
THREE_TOKENS = {
    "masks": dd.presets.mdlm(3),
    "two levels": dd.presets.hdlm([0, 0, 1], gamma=1.5, xi=0.8),
    "uniform": Uniform(3, Cosine()),
    "GIDD": dd.presets.gidd(3, 0.3),
    "noisy": dd.processes.Noisy(dd.hierarchies.Flat(3), dd.schedules.Linear(), 0.2),
}
IN_PLACE = {
    "gidd": GIDD(3, 0.3),
    "uniform": Uniform(3, Cosine()),
    "clusters": dd.presets.hdlm_levels([[0, 1, 1]], xi=0.7, speed=[1.0, 2.0]),
}
"""Processes in which there are states to correct in place."""
PAIR = torch.tensor([[0.30, 0.02, 0.05], [0.03, 0.05, 0.20], [0.25, 0.04, 0.06]], dtype=F64)
"""Joint distribution of a sequence of two tokens out of three."""
PAIR_OF_FOUR = torch.tensor(
    [
        [0.30, 0.01, 0.02, 0.01],
        [0.01, 0.02, 0.15, 0.01],
        [0.02, 0.20, 0.01, 0.02],
        [0.01, 0.01, 0.02, 0.18],
    ],
    dtype=F64,
)
"""The same of two tokens out of four."""
FOUR_TOKENS = {
    "masked": Masked(4, Cosine()),
    "hdlm": dd.presets.hdlm([0, 1, 1, 2], gamma=2.0),
    "hdlm-xi": dd.presets.hdlm([0, 1, 1, 2], xi=0.7),
    "levels-xi": dd.presets.hdlm_levels(
        [[0, 1, 1, 2], [0, 0, 1]], xi=[0.7, 0.8], speed=[1.0, 2.0, 0.7]
    ),
}
TREE = dd.presets.hdlm_levels(
    [[0, 1, 1]]
)  # token 0 alone in its cluster, state 3; tokens 1 and 2 in state 4; mask 5
SAMPLERS = {
    "ancestral": Ancestral(),
    "ancestral-force": Ancestral(True),
    "first": FirstHitting(),
    "first-force": FirstHitting(True),
}
CORRECTORS = (
    ForwardBackward(2.0),
    EdgeBalance(2.0),
    Gibbs(2),
    Gibbs(2, "margin"),
    SelfCorrection(steps=6),
)

every_pair = pytest.mark.parametrize(
    ("name", "sampler"),
    [
        pytest.param(name, sampler, id=f"{name}-{kind}")
        for (name, process), (kind, sampler) in itertools.product(LEVELS.items(), SAMPLERS.items())
        if not sampler.force_transition
        or any(edge.spread is not None for edge in process.hierarchy.maps)
    ],
)
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


def at(t, rows=1):
    """One time for each of ``rows`` sequences."""
    return torch.full((rows,), t, dtype=F64)


def never(z, t):
    """A network that must not be called."""
    raise AssertionError("the network was called")


def with_own_times(denoiser, block_size=None):
    """The same denoiser, as one that takes a time for each position."""
    denoiser.own_times = True
    if block_size is not None:
        denoiser.block_size = block_size
    return denoiser


def joint(words, length, seed=0):
    """A joint distribution of sequences, (words,) * length."""
    return (
        torch.randn(words**length, dtype=F64, generator=seeded(seed))
        .softmax(0)
        .view([words] * length)
    )


def sampled(process, sampler, steps=5):
    """Sample with a network that must not be called."""
    return dd.sample(process, never, (2, 3), sampler, steps)


NAMES.update(LEVELS=LEVELS, never=never, sampled=sampled)


def follows(tokens, probs):
    """True if sequences have the frequencies of a joint distribution, by exact binomial bounds."""
    index = torch.zeros(len(tokens), dtype=torch.int64)
    for column in tokens.unbind(1):
        index = index * probs.shape[0] + column
    counts = tally(index[:, None], probs.numel())[0]
    found = frequencies("sequences", ("sequence",), counts, probs.flatten(), len(tokens))
    return bool(((found.got - found.expected).abs() <= found.allowed).all())


class Halves:
    """A random denoiser in two halves, row by row; counts its calls and the sequences in them."""

    def __init__(self, process, bias=True):
        generator = torch.Generator().manual_seed(7)

        def randn(*shape):
            return torch.randn(*shape, generator=generator, dtype=F64)

        self.table, self.weight = randn(2, process.num_states, D) / 2, randn(V, D) / 2
        self.bias = randn(V) / 4 if bias else None
        self.calls = 0
        self.sequences = 0
        self.whole = 0

    def features(self, z, t):
        assert (
            z.dtype == torch.int64 and t.dtype == torch.get_default_dtype() and t.shape == (len(z),)
        )
        self.calls, self.sequences = self.calls + 1, self.sequences + len(z)
        return self.table[0][z] + self.table[1][z.roll(1, -1)] * (1 + t[:, None, None].double())

    def output_weights(self):
        return self.weight, self.bias

    def __call__(self, z, t):
        self.whole += 1
        return linear(self.features(z, t), self.weight, self.bias)


def plain(halves):
    """The same denoiser with its halves hidden."""
    return lambda z, t: halves(z, t)


def generate(process, denoiser, sampler=None, shape=(4, 5), seed=0, steps=7, **options):
    """Sample with keyed noise, so that a row is a function of its number."""
    index = torch.arange(shape[0])
    return dd.sample(
        process,
        denoiser,
        shape,
        sampler,
        steps,
        generator=dd.KeyedGenerator(seed, 0, index),
        **options,
    )


def row_by_row(process, denoiser, sampler=None, shape=(4, 5), steps=7):
    """The same rows, each sampled in a separate batch."""
    rows = (dd.KeyedGenerator(0, 0, torch.tensor([row])) for row in range(shape[0]))
    return torch.cat(
        [dd.sample(process, denoiser, (1, shape[1]), sampler, steps, generator=one) for one in rows]
    )


def trajectory(process, denoiser, sampler, **options):
    """States after each step, (steps + 1, B, L)."""
    states = []
    generate(
        process, denoiser, sampler, on_step=lambda k, t, z: states.append(z.clone()), **options
    )
    return torch.stack(states)


def context(process, denoiser, shape, seed=0, free=None, compact=True):
    """The context of a call of ``sample`` at t = 1."""
    free = torch.ones(shape, dtype=torch.bool) if free is None else free
    generator = dd.KeyedGenerator(seed, 0, torch.arange(shape[0]))
    network = Model(process, denoiser, compact=compact)
    return SamplingContext(process, network, unchanged, at(1.0), free, generator)


def serves(sampler, process):
    """Return whether the sampler or corrector supports the process."""
    try:
        sampler.check(process)
    except TypeError:
        return False
    return True


def alike(z, t):
    """A reward of finished sequences: 1 if both tokens are the same."""
    return ((z[:, 0] == z[:, 1]) & (z < 3).all(-1)).double()


def clusters(z, t):
    """A reward of states: how many are in the second cluster, as it or as a token of it."""
    return torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], dtype=F64)[z].sum(-1)


def ramp(z, t):
    """Any reward that depends on every state, and on the time."""
    return (z.double() * torch.arange(1, z.shape[1] + 1)).cos().sum(-1) * (1 - t / 3)


def seeded(seed=0):
    """A generator of random numbers."""
    return torch.Generator().manual_seed(seed)
