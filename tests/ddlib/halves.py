"""A denoiser in two halves that counts, and processes to run it on, for the tests of samplers that skip."""

import itertools

import pytest
import torch
from torch.nn.functional import linear

import ddlib as dd
from ddlib.hierarchies import Tree
from ddlib.processes import Hierarchical, Masked
from ddlib.samplers import Ancestral, FirstHitting
from ddlib.schedules import Cosine, Geometric

PARENTS, ABOVE, V, D = [0, 0, 1, 1, 2, 3], [0, 1, 1, 0], 6, 5
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
SAMPLERS = {
    "ancestral": Ancestral(),
    "ancestral-force": Ancestral(True),
    "first": FirstHitting(),
    "first-force": FirstHitting(True),
}

SLOW = ("hdlm-xi", "levels", "levels-xi-below", "levels-xi-above", "geometric")  # much like the others
every_pair = pytest.mark.parametrize(
    ("name", "sampler"),
    [
        pytest.param(name, sampler, id=f"{name}-{kind}", marks=[pytest.mark.slow] if name in SLOW else [])
        for (name, process), (kind, sampler) in itertools.product(LEVELS.items(), SAMPLERS.items())
        if not sampler.force_transition or any(edge.spread is not None for edge in process.hierarchy.maps)
    ],
)
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


class Halves:
    """A random denoiser in two halves, row by row; counts its calls and the sequences that they were about."""

    def __init__(self, process, bias=True):
        generator = torch.Generator().manual_seed(7)

        def randn(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.table, self.weight = randn(2, process.num_states, D) / 2, randn(V, D) / 2
        self.bias = randn(V) / 4 if bias else None
        self.calls, self.sequences, self.whole = 0, 0, 0

    def features(self, z, t):
        assert z.dtype == torch.int64 and t.dtype == torch.get_default_dtype() and t.shape == (len(z),)
        self.calls, self.sequences = self.calls + 1, self.sequences + len(z)
        return self.table[0][z] + self.table[1][z.roll(1, -1)] * (1 + t[:, None, None].double())

    def words(self):
        return self.weight, self.bias

    def __call__(self, z, t):
        self.whole += 1
        return linear(self.features(z, t), self.weight, self.bias)


def plain(halves):
    """The same denoiser with its halves out of sight."""
    return lambda z, t: halves(z, t)


def generate(process, denoiser, sampler=None, shape=(4, 5), seed=0, steps=7, **options):
    index, steps = torch.arange(shape[0]), None if "times" in options else steps
    return dd.sample(process, denoiser, shape, sampler, steps, generator=dd.KeyedGenerator(seed, 0, index), **options)


def trajectory(process, denoiser, sampler, **options):
    states = []
    generate(process, denoiser, sampler, on_step=lambda k, t, z: states.append(z.clone()), **options)
    return torch.stack(states)
