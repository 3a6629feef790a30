"""Claims about samplers with a transition kernel: draws follow it, and its error has the stated
order.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ddlib.processes import identity
from ddlib.processes.examples import three
from ddlib.samplers import Sampler, SamplingContext, State
from ddlib.samplers.runtime.model import Model
from ddlib.verification.framework.cases import Case
from ddlib.verification.framework.claim import Claim, Comparison, Point, condition
from ddlib.verification.framework.inputs import at, frequencies, tally
from ddlib.verification.framework.reference import exact_cavity, sequences

STRONG = torch.tensor(
    [[0.30, 0.02, 0.05], [0.03, 0.25, 0.02], [0.08, 0.05, 0.20]], dtype=torch.float64
)
WEAK = torch.tensor(
    [[0.18, 0.13, 0.20], [0.05, 0.07, 0.07], [0.08, 0.09, 0.13]], dtype=torch.float64
)
"""Dependence weak enough that extrapolated probabilities stay positive."""
_GRID = torch.tensor([1.0, 0.7, 0.45, 0.0], dtype=torch.float64)
_DRAWS = 40_000
_SLACK = 0.3
_ROUNDING = 1e-12


def runs(sampler: Sampler) -> list[Case]:
    """Return cases of the sampler with processes over three tokens, for which all sequences of two
    can be listed.
    """
    return (
        [Case(sampler, three()[name]) for name in ("masked", "tree", "uniform")]
        if sampler.order
        else []
    )


def _draws(run: Case, point: Point) -> Iterator[Comparison]:
    """Draw one step from every sequence of two states."""
    states = sequences(run.process.num_states, 2)
    k = int(point["step"])
    number = len(states)
    predict = exact_cavity(run.process, STRONG)
    size = run.process.num_states
    repeats = _DRAWS // number
    z = states.repeat_interleave(repeats, 0)
    everywhere = torch.ones_like(z, dtype=torch.bool)
    generator = torch.Generator().manual_seed(6 + k)
    network = Model(run.process, predict)
    call = SamplingContext(run.process, network, identity, _GRID, everywhere, generator)
    t = float(_GRID[k])
    s = float(_GRID[k + 1])
    outcomes = run.subject.step(call, State(z, at(t, len(z))), k).z
    counts = tally((outcomes @ torch.tensor([size, 1])).view(number, repeats).T, number)
    kernel = run.subject.kernel(run.process, predict, states, at(t, number), at(s, number))
    sums = kernel.sum(1)
    yield Comparison("the kernel's rows, summed", ("z_t",), sums, torch.ones_like(sums), 1e-9)
    yield frequencies(f"draws of z_s at s = {s:g}", ("z_t", "z_s"), counts, kernel, repeats)


def errors(run: Case, counts: list[int], joint: Tensor = WEAK) -> list[float]:
    """Compute the total variation between ``joint`` and the sampled distribution, exactly, for each
    number of steps.
    """
    states = sequences(run.process.num_states, 2)
    process = run.process
    predict = exact_cavity(process, joint)
    number = len(states)
    is_tokens = (states < process.vocab_size).all(1)
    result = []
    for steps in counts:
        probs = process.prior()[states].prod(1)
        for t, s in pairwise(torch.linspace(1, 0, steps + 1, dtype=torch.float64).tolist()):
            step = run.subject.kernel(process, predict, states, at(t, number), at(s, number))
            # rows of impossible states are undefined
            probs = probs @ torch.where(probs[:, None] > 0, step, 0.0)
        probs[is_tokens] -= joint.flatten()
        result.append(float(probs.abs().sum() / 2))
    return result


def _order(run: Case, point: Point) -> Iterator[Comparison]:
    order = run.subject.order
    first = int(point["steps"])
    counts = [first, 2 * first, 4 * first]
    for steps, (coarse, fine) in zip(counts, pairwise(errors(run, counts)), strict=False):
        slope = math.inf if fine < _ROUNDING else math.log2(max(coarse, _ROUNDING) / fine)
        message = (
            f"from {steps} to {2 * steps} steps the error of two tokens falls from {coarse:.3g} to "
            f"{fine:.3g}, as "
            f"steps ** -{slope:.2f}; order = {order} requires {order}"
        )
        yield condition("the order of the error", slope > order - _SLACK, message)


CLAIMS = (
    Claim(
        "sampler",
        "steps",
        "draws of a step follow its kernel, from every sequence of two states",
        "binomial bounds, false alarm 1e-6",
        _draws,
        ({"step": 1},),
        ({"step": 0}, {"step": 2}),
    ),
    Claim(
        "sampler",
        "order",
        "twice the steps divide the error of two tokens by 2 ** order, or more",
        f"exponent {_SLACK} less",
        _order,
        ({"steps": 8},),
        ({"steps": 16},),
        rests_on=("steps",),
    ),
)
