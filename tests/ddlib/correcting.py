"""A text of two tokens, processes with something to correct in place, and calls of ``sample`` to correct in."""

import torch

import ddlib as dd
from ddlib.processes import GIDD, Uniform, unchanged
from ddlib.samplers import EdgeBalance, ForwardBackward, Gibbs, SamplingContext, SelfCorrection
from ddlib.samplers.runtime.model import ModelWrapper
from ddlib.schedules import Cosine

F64 = torch.float64
PAIR = torch.tensor([[0.30, 0.02, 0.05], [0.03, 0.05, 0.20], [0.25, 0.04, 0.06]], dtype=F64)
IN_PLACE = {
    "gidd": GIDD(3, 0.3),
    "uniform": Uniform(3, Cosine()),
    "clusters": dd.presets.hdlm_levels([[0, 1, 1]], xi=0.7, speed=[1.0, 2.0]),
}
"""Processes in which there are states to correct in place."""
EVERY = (ForwardBackward(2.0), EdgeBalance(2.0), Gibbs(2), Gibbs(2, "margin"), SelfCorrection(steps=6))


def at(t, rows=1):
    return torch.full((rows,), t, dtype=F64)


def a_run(process, denoiser, shape, seed=0, free=None, compact=True):
    free = torch.ones(shape, dtype=torch.bool) if free is None else free
    generator = dd.KeyedGenerator(seed, 0, torch.arange(shape[0]))
    return SamplingContext(
        process, ModelWrapper(process, denoiser, compact=compact), unchanged, at(1.0), free, generator
    )


def serves(corrector, process):
    try:
        corrector.check(process)
    except TypeError:
        return False
    return True
