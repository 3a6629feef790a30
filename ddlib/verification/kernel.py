"""What holds for samplers that tell the law of their step: draws follow it, and it errs as little as they say."""

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ddlib.processes.sampled import unchanged
from ddlib.samplers import Run as Call
from ddlib.samplers import State
from ddlib.verification.cases import at, frequencies, tally
from ddlib.verification.claim import Claim, Comparison, Point, stated
from ddlib.verification.oracle import exact_cavity
from ddlib.verification.sampler import Run

STRONG = torch.tensor([[0.30, 0.02, 0.05], [0.03, 0.25, 0.02], [0.08, 0.05, 0.20]], dtype=torch.float64)
WEAK = torch.tensor([[0.18, 0.13, 0.20], [0.05, 0.07, 0.07], [0.08, 0.09, 0.13]], dtype=torch.float64)
"""So weak that no extrapolation of one word's law from another's turns negative."""
_GRID = torch.tensor([1.0, 0.7, 0.45, 0.0], dtype=torch.float64)
_DRAWS, _SLACK, _ROUNDING = 40_000, 0.3, 1e-12


def _texts(run: Run) -> Tensor:
    states = torch.arange(run.small.num_states)
    return torch.cartesian_prod(states, states)


def _draws(run: Run, point: Point) -> Iterator[Comparison]:
    """One step from every text of two states."""
    texts, k = _texts(run), int(point["step"])
    number, predict, size = len(texts), exact_cavity(run.small, STRONG), run.small.num_states
    each = _DRAWS // number
    z = texts.repeat_interleave(each, 0)
    call = Call(
        run.small, predict, unchanged, _GRID, torch.ones_like(z, dtype=torch.bool), torch.Generator().manual_seed(6 + k)
    )
    t, s = float(_GRID[k]), float(_GRID[k + 1])
    drawn = run.sampler.step(call, State(z, at(t, len(z))), k).z
    counts = tally((drawn @ torch.tensor([size, 1])).view(number, each).T, number)
    law = run.sampler.kernel(run.small, predict, texts, at(t, number), at(s, number))
    sums = law.sum(1)
    yield Comparison("the kernel's rows, summed", ("z_t",), sums, torch.ones_like(sums), 1e-9)
    yield frequencies(f"draws of z_s at s = {s:g}", ("z_t", "z_s"), counts, law, each)


def errors(run: Run, counts: list[int], joint: Tensor = WEAK) -> list[float]:
    """The total variation between the law of two words after so many steps and their ``joint``, without drawing."""
    texts, process = _texts(run), run.small
    predict, number = exact_cavity(process, joint), len(texts)
    words, result = (texts < process.vocab_size).all(1), []
    for steps in counts:
        law = process.prior()[texts].prod(1)
        for t, s in pairwise(torch.linspace(1, 0, steps + 1, dtype=torch.float64).tolist()):
            step = run.sampler.kernel(process, predict, texts, at(t, number), at(s, number))
            law = law @ torch.where(law[:, None] > 0, step, 0.0)  # nothing is said of states that cannot be
        law[words] -= joint.flatten()
        result.append(float(law.abs().sum() / 2))
    return result


def _order(run: Run, point: Point) -> Iterator[Comparison]:
    order, first = run.sampler.order, int(point["steps"])
    assert order is not None
    counts = [first, 2 * first, 4 * first]
    for steps, (coarse, fine) in zip(counts, pairwise(errors(run, counts)), strict=False):
        slope = math.inf if fine < _ROUNDING else math.log2(max(coarse, _ROUNDING) / fine)
        says = (
            f"from {steps} to {2 * steps} steps the error of two words falls from {coarse:.3g} to {fine:.3g}, "
            f"as steps to the minus {slope:.2f}; order = {order} says {order}"
        )
        yield stated("the order of the error", slope > order - _SLACK, says)


def _silent(run: Run) -> str:
    return "" if run.sampler.order else f"{type(run.sampler).__name__} does not tell the law of its step"


CLAIMS = (
    Claim("sampler", "steps", "draws of a step follow its kernel, from every text of two states",
          "binomial bounds, false alarm 1e-6", _draws, ({"step": 1},), ({"step": 0}, {"step": 2}), _silent),
    Claim("sampler", "order", "twice the steps divide the error of two words by two to the order, or more",
          f"exponent {_SLACK} less", _order, ({"steps": 8},), ({"steps": 16},), _silent, rests_on=("steps",)),
)  # fmt: skip
