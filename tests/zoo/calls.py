"""Calls of ``sample`` with few steps."""

import torch

import ddlib as dd
from ddlib.processes import identity
from ddlib.samplers import SamplingContext
from ddlib.samplers.runtime.model import Model
from zoo.networks import never

F64 = torch.float64


def seeded(seed=0):
    """A generator of random numbers."""
    return torch.Generator().manual_seed(seed)


def at(t, rows=1):
    """One time for each of ``rows`` sequences."""
    return torch.full((rows,), t, dtype=F64)


def sampled(process, sampler, steps=5):
    """Sample with a network that must not be called."""
    return dd.sample(process, never, (2, 3), sampler, steps)


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
    return SamplingContext(process, network, identity, at(1.0), free, generator)
