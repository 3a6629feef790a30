"""Samplers and correctors."""

import itertools

import pytest

from ddlib.samplers import (
    Ancestral,
    EdgeBalance,
    FirstHitting,
    ForwardBackward,
    Gibbs,
    SelfCorrection,
)
from zoo.processes import LEVELS

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


def serves(sampler, process):
    """Return whether the sampler or corrector supports the process."""
    try:
        sampler.check(process)
    except TypeError:
        return False
    return True
