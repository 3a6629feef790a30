"""Density of times with the least variance of the bound, from the moments of the bound's
integrand.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.processes.chord import WIDTH
from ddlib.processes.moments import dense_moments, grid, logits_of_nats, nats_of_token, table
from ddlib.schedules.base import breaks
from ddlib.times import Tabulated, TimeDensity
from ddlib.typing import Times
from ddlib.utils.validation import check_count, check_number

_ENUMERATED = 160
_DENSE = 1024
_NOTHING = 1e-9  # relative to the mean square at t = 1/2
_APART = 1e-9
"""Least distance of two ends of windows between which a table has cells."""
_REDUCED = 24
_TOKENS = 8
_HELD = 2**20

Moments = tuple[Float64[Tensor, "B"], Float64[Tensor, "B"]]
Pairs = tuple[Int64[Tensor, "N"], Int64[Tensor, "N"], Float64[Tensor, "N"]]


def density(
    process: Any, length: int, divergences: Sequence[float] | None, chance: float
) -> Tabulated:
    """Compute ``ForwardProcess.time_density``."""
    check_count("length", length)
    check_number("chance", chance, 0.01, 1, "in [0.01, 1]")
    # a time that is rounded to the end of a window has the integrand before that end, and so
    # belongs to that cell
    ends = [math.nextafter(end, 1) for end in _apart(process.breaks)[1:]]
    edges, inside = grid(process.device, [0.0, *ends])
    mean, square = process.time_moments(inside, divergences)
    return table(edges, mean, square, length, chance)


def moments(process: Any, t: Times, divergences: Sequence[float] | None) -> Moments:
    """Compute ``ForwardProcess.time_moments`` under predictions with the same divergence for every
    token.

    The closed form is summed over pairs of token and state; without one, matrix products sum over
    all states.
    """
    nats = nats_of_token(process.vocab_size, divergences)
    if not process.closed_form and process.num_states <= _DENSE:
        return dense_moments(process, t, nats)
    x, z, count = process.equivalence_classes()
    if not process.closed_form or len(x) > _ENUMERATED * _TOKENS:
        return process.small_copy(_REDUCED).to(process.device).time_moments(t, [nats])
    logits = logits_of_nats(nats, x, process.vocab_size)

    def moments_at(t: Tensor) -> Tensor:
        tokens = x.expand(len(t), -1)
        states = z.expand(len(t), -1)
        mass = process.likelihood(states, tokens, t) * count
        mass = mass / mass.sum(-1, keepdim=True)  # each token's states have mass one
        weight, divergence = process.weighted_divergence(
            logits.expand(len(t), -1, -1), tokens, states, t
        )
        integrand = torch.where(mass > 0, weight * divergence, 0.0)
        return torch.stack([(mass * integrand).sum(-1), (mass * integrand**2).sum(-1)])

    rows = max(1, _HELD // (len(x) * process.vocab_size))
    mean, square = torch.cat([moments_at(part) for part in t.split(rows)], 1)
    return mean, square


def tail_exponents(process: Any, density: TimeDensity | None) -> dict[float, float]:
    """Compute ``ForwardProcess.tail_exponents``."""
    ends = _apart(breaks(process.schedules))
    result = dict.fromkeys(ends, 0.0)
    if process.vocab_size == 1:  # there is nothing to estimate
        return result
    near = torch.tensor([4e-7, 4e-6], dtype=torch.float64, device=process.device)
    for low, high in pairwise(ends):
        length = high - low
        # before an end inside (0, 1) a diverging flux is cut off, at this distance
        before = length * near if high == 1 else min(WIDTH, length / 20) * near / near[0]
        times = torch.cat([low + length * near, high - before])
        square = process.time_moments(torch.cat([times, times.new_tensor([(low + high) / 2])]))[1]
        # below this values are rounding errors, which unbounded rates would turn into a spurious
        # tail
        square = square[:4].clamp_min(_NOTHING * float(square[4])) + torch.finfo(torch.float64).tiny
        height = (square if density is None else square * density.weight(times)).log10()
        result[low] = (
            max(result[low], float(height[0] - height[1]))
            if low > 0
            else float(height[0] - height[1])
        )
        result[high] = float(height[2] - height[3])
    return result


def _apart(times: Sequence[float]) -> list[float]:
    """Return the times from 0 to 1 without those that differ from the one before only by a rounding
    error.
    """
    result = [0.0]
    for time in times:
        if time - result[-1] > _APART and 1 - time > _APART:
            result.append(time)
    return [*result, 1.0]


def pairs(process: Any) -> Pairs:
    """Pairs of every state with a few tokens, each with a count of one."""
    tokens = torch.linspace(
        0, process.vocab_size - 1, min(_TOKENS, process.vocab_size), device=process.device
    ).long()
    x = tokens.repeat_interleave(process.num_states)
    z = torch.arange(process.num_states, device=process.device).repeat(len(tokens))
    return x, z, torch.ones(len(x), dtype=torch.float64, device=process.device)
