"""Claims about densities of times, and about ``process.time_density``."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.polynomial import legendre
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.processes.examples import three
from ddlib.schedules.base import breaks
from ddlib.times import TimeDensity
from ddlib.times.draws import sample_times
from ddlib.typing import HasLevelWeights
from ddlib.verification.claims.arguments import PART_CLAIMS
from ddlib.verification.claims.objective.bound import removed_information
from ddlib.verification.framework.claim import Claim, Comparison, Point, of_dtype
from ddlib.verification.framework.dependencies import verifier
from ddlib.verification.framework.inputs import at, logits, pairs

_ROUNDING = 2.0**-52
_HELD = 2**18  # numbers in a tensor, such that it fits into the CPU's caches
_GRID = torch.linspace(-16, 16, 129, dtype=torch.float64).sigmoid()
"""Times evenly spaced in log-odds, from 1e-7 to 1 - 1e-7."""


def integral(
    function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, tolerance: float = 1e-11
) -> Tensor:
    """Integrate a function (N,) -> (N,) between each ``low`` and ``high`` (n,) by adaptive
    bisection.

    Jumps inside, of which tabulated densities have many, cost bisections but no accuracy. The rule
    is Gauss-Lobatto: a rule without nodes at the ends would miss a jump next to them.
    """
    last = [0.0] * 9 + [1.0]  # the coefficients of P_9
    roots = np.sort(legendre.legroots(legendre.legder(last)).real)  # complex from numpy 2.5 on
    u = np.concatenate([[-1.0], roots, [1.0]])
    nodes = torch.as_tensor((u + 1) / 2)
    weights = torch.as_tensor(2 / (90 * legendre.legval(u, last) ** 2))
    result = torch.zeros_like(low)
    owner = torch.arange(len(low))
    previous: Tensor | None = None

    def rule(a: Tensor, b: Tensor) -> Tensor:
        points = a[:, None] + (b - a)[:, None] * nodes
        return (function(points.flatten()).view(points.shape) * weights).sum(-1) * (b - a) / 2

    for depth in range(60):
        previous = rule(low, high) if previous is None else previous
        middle = (low + high) / 2
        halves = rule(low, middle), rule(middle, high)
        difference = (halves[0] + halves[1] - previous).abs()
        # bisection does not help with infinity or NaN
        finished = (difference <= tolerance) | ~difference.isfinite() | (depth == 59)
        result.index_add_(0, owner[finished], (halves[0] + halves[1])[finished])
        low = torch.cat([low[~finished], middle[~finished]])
        high = torch.cat([middle[~finished], high[~finished]])
        owner = owner[~finished].repeat(2)
        previous = torch.cat([half[~finished] for half in halves])
        if not len(owner):
            break
    return result


def _ends(density: TimeDensity, point: Point) -> Iterator[Comparison]:
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    yield Comparison("cumulative(t)", (), density.cumulative(ends), ends, 1e-12, {"t": ends})
    rising = density.cumulative(_GRID).diff()
    message = "cumulative falls after t = {t:.6g}: must rise"
    yield Comparison(
        "cumulative rises", (), rising, rising.clamp_min(0), 0.0, {"t": _GRID[:-1]}, message
    )
    yield of_dtype("cumulative(t)", density.cumulative(ends), torch.float64)


def _positive(density: TimeDensity, point: Point) -> Iterator[Comparison]:
    g = density.density(_GRID)
    good = (g.isfinite() & (g > 0)).double()
    message = (
        "density({t:.6g}) must be positive and finite: times that are not drawn would bias the "
        "bound"
    )
    yield Comparison(
        "density is positive", (), good, torch.ones_like(g), 0.0, {"t": _GRID}, message
    )
    yield of_dtype("density(t)", g, torch.float64)


def _integrates(density: TimeDensity, point: Point) -> Iterator[Comparison]:
    low = _GRID[:-1]
    high = _GRID[1:]
    got = density.cumulative(_GRID).diff()
    reached = integral(density.density, low, high)
    quantity = "G(t + step) - G(t), expected: integral of g"
    yield Comparison(quantity, (), got, reached, 1e-9, {"t": low})


def _inverse(density: TimeDensity, point: Point) -> Iterator[Comparison]:
    g = density.density(_GRID)
    # G has a rounding error, so its time has that error divided by g
    allowed = 1e-12 + 4 * _ROUNDING / g
    back = density.inverse(density.cumulative(_GRID))
    yield Comparison("inverse(cumulative(t))", (), back, _GRID, allowed, {"t": _GRID})
    u = torch.linspace(0, 1, 257, dtype=torch.float64)
    t = density.inverse(u)
    yield Comparison("inverse(u) is in [0, 1]", (), t, t.clamp(0, 1), 0.0, {"u": u})
    slope = density.density(t.clamp(1e-16, 1 - _ROUNDING)).nan_to_num(0.0, posinf=0.0)
    yield Comparison(
        "cumulative(inverse(u))", (), density.cumulative(t), u, 1e-12 + _ROUNDING * slope, {"u": u}
    )


def _weighs(density: TimeDensity, point: Point) -> Iterator[Comparison]:
    g = density.density(_GRID)
    yield Comparison("weight(t)", (), density.weight(_GRID), 1 / g, 1e-12 / g, {"t": _GRID})
    ends = torch.tensor([0.1, 0.8], dtype=torch.float64)
    inner = _GRID[(ends[0] < _GRID) & (ends[1] > _GRID)]
    part = density.cumulative(ends).diff()
    expected = part / density.density(inner)
    got = density.weight(inner, (0.1, 0.8))
    yield Comparison(
        "weight(t) between 0.1 and 0.8", (), got, expected, 1e-12 * expected, {"t": inner}
    )
    steps = density.cumulative(inner).diff()
    expected = part / steps
    got = density.step_weight(inner[:-1], inner[1:], (0.1, 0.8))
    allowed = 1e-12 * expected * (1 + 1 / steps)
    yield Comparison("step_weight(s, t)", (), got, expected, allowed, {"t": inner[1:]})


def _draws(density: TimeDensity, point: Point) -> Iterator[Comparison]:
    """Check that there is one draw in each slice of equal probability."""
    count = 512
    slices = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    for low, high in ((0.0, 1.0), (0.1, 0.8)):
        generator = torch.Generator().manual_seed(1)
        t = sample_times(
            count, generator=generator, density=density, interval=(low, high), dtype=torch.float64
        )
        start, end = density.cumulative(torch.tensor([low, high], dtype=torch.float64))
        share = (density.cumulative(t.sort().values) - start) / (end - start)
        yield Comparison(
            f"share of the draws before t, of [{low}, {high}]",
            ("draw",),
            share,
            slices,
            0.5001 / count,
        )


def _same_bound(density: TimeDensity, point: Point) -> Iterator[Comparison]:
    """Compare the mean over draws, an integral over u = G(t), with the bound, an integral over
    t.
    """
    for name, process in EXAMPLES.items():
        scores = logits(process, point["distribution"])[0, 0]
        integrand = partial(mean_bound, process, scores)

        def integrand_at(u: Tensor, integrand: Callable[[Tensor], Tensor] = integrand) -> Tensor:
            t = density.inverse(u)
            return density.weight(t) * integrand(t)

        edges = _GRID[::8]
        u = density.cumulative(edges)
        rare = density.weight(edges) > 1e5  # there u does not resolve the time
        resolved = ~(rare[:-1] | rare[1:])
        low = edges[:-1][resolved]
        high = edges[1:][resolved]
        expected = integral(integrand, low, high, 1e-9)
        got = integral(integrand_at, u[:-1][resolved], u[1:][resolved], 1e-9)
        yield Comparison(f"mean of the weighted bound, {name}", (), got, expected, 1e-6, {"t": low})


def mean_bound(process: ForwardProcess, scores: Tensor, t: Tensor) -> Tensor:
    """Return the mean of the bound's integrand over uniform tokens and noise, with one prediction,
    at times (N,).
    """
    return bound_moment(process, scores, t, 1)


def bound_moment(process: ForwardProcess, scores: Tensor, t: Tensor, power: int) -> Tensor:
    """Return the mean of a power of the integrand over uniform tokens and noise.

    ``scores`` (V,) or (1, V S, V).
    """
    tokens = process.vocab_size
    states = process.num_states
    x = torch.arange(tokens).repeat_interleave(states)[None]
    z = torch.arange(states).repeat(tokens)[None]

    def moments(t: Tensor) -> Tensor:
        clean = x.expand(len(t), -1)
        noisy = z.expand(len(t), -1)
        mass = process.likelihood(noisy, clean, t)
        value = process.integrand(scores.expand(*clean.shape, -1), clean, noisy, t)
        return torch.where(mass > 0, mass * value**power, 0.0).sum(-1) / tokens

    together = max(1, _HELD // (x.shape[1] * states))
    return torch.cat([moments(part) for part in t.split(together)])


EXAMPLES = {"masks": three()["masked"], "two levels": three()["tree"], "GIDD": three()["gidd"]}


def _own_density(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    density = process.time_density(32)
    for claim in (_ends, _positive, _inverse, _weighs):
        yield from claim(density, point)


def _moments(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare sums over levels with the same sums over tokens and states."""
    time = at(float(point["t"]))
    x, z, t = pairs(process, float(point["t"]), 8)
    nats = torch.arange(1.0, len(process.levels), dtype=torch.float64)
    mass = process.likelihood(z, x, t)[0]
    paid = (
        process.loss_weight(x, z, t) * torch.cat([nats.new_zeros(1), nats])[process.level_of(z)]
    )[0]
    got = process.time_moments(time, nats.tolist())
    for power, moment in enumerate(got, start=1):
        expected = (mass * paid**power).sum()[None] / mass.sum()
        yield Comparison(
            f"E[(w k)^{power}]", (), moment, expected, 1e-9 * (1 + expected), {"t": time}
        )


def _efficient(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare the second moment of one draw with its minimum (int sqrt(s) dt)^2, attained for g ~
    sqrt(s).
    """
    # log-odds 1/4 apart
    flat = torch.zeros(process.vocab_size, dtype=torch.float64)
    width = _GRID * (1 - _GRID) / 4
    second = bound_moment(process, flat, _GRID, 2)
    got = (second / process.time_density(1).density(_GRID) * width).sum()[None]
    least = (second.sqrt() * width).sum()[None] ** 2
    yield Comparison(
        "second moment of one draw under time_density",
        (),
        got,
        got.clamp_max(_EFFICIENT * least),
        0.0,
        {},
        f"must be at most {_EFFICIENT} times the least, which g ~ sqrt(E f^2) has",
    )


def _tails(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare the exponents at t = 0 and at every start of a window with those of the times after
    them.
    """
    flat = torch.zeros(process.vocab_size, dtype=torch.float64)
    exponents = process.tail_exponents()
    for start in [0.0, *breaks(process.schedules)]:
        length = min(end for end in exponents if end > start) - start
        times = start + length * _GRID.new_tensor([4e-7, 4e-6, 0.5])
        second = bound_moment(process, flat, times, 2).clamp_min(torch.finfo(torch.float64).tiny)
        got = _GRID.new_tensor([exponents[start]])
        measured = second[:2].log10().diff().neg()
        # where flat predictions pay next to nothing near the data, as for children that are known
        # from a state of a narrow blur, the values are rounding errors and the exponents upper
        # estimates; so are they where times before an end have a larger one
        exact = start == 0 and bool((second[:2] > 1e-9 * second[2]).all())
        yield Comparison(
            f"tail_exponents()[{start:g}]",
            (),
            got,
            measured if exact else measured.maximum(got),
            0.2,
            {},
        )


def _float32_times(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare the bound at the float32 times around each break with its integral over the times
    rounded to them.
    """
    flat = torch.zeros(process.vocab_size, dtype=torch.float64)
    believed = flat.softmax(-1)
    for end in process.breaks:
        spacing = float(np.spacing(np.float32(end)))
        times = (
            torch.tensor([end + step * spacing for step in range(-4, 5)], dtype=torch.float32)
            .double()
            .unique()
        )
        cells = (times[1:] + times[:-1]) / 2
        got = mean_bound(process, flat, times[1:-1]) @ cells.diff()
        lost = removed_information(process, float(cells[0]), believed) - removed_information(
            process, float(cells[-1]), believed
        )
        yield Comparison(
            "integral of the bound",
            (),
            got[None],
            lost.mean()[None],
            1e-4,
            {"t": cells.new_tensor([end])},
        )


_EFFICIENT = 2.0
"""Allowed excess of the second moment: a level whose loss is half or twice the guess gives 1.9."""

_DISTRIBUTION = ({"distribution": 1},)

CLAIMS = (
    Claim("times", "ends", "G rises from 0 at t = 0 to 1 at t = 1", "1e-12", _ends),
    Claim("times", "positive", "g is positive and finite inside (0, 1)", "exactly", _positive),
    Claim(
        "times",
        "integrates",
        "G is the integral of g, which is one",
        "1e-9",
        _integrates,
        rests_on=("ends", "positive"),
    ),
    Claim(
        "times",
        "inverse",
        "inverse and cumulative are inverse functions",
        "1e-12 (+ rounding / g)",
        _inverse,
        rests_on=("ends", "positive"),
    ),
    Claim(
        "times",
        "weight",
        "weights are (G(high) - G(low)) / g, those of steps over G(t) - G(s)",
        "relative 1e-12",
        _weighs,
        rests_on=("positive",),
    ),
    Claim(
        "times",
        "draws",
        "each slice of equal probability has one stratified draw, in any interval",
        "exactly",
        _draws,
        rests_on=("inverse",),
    ),
    Claim(
        "times",
        "same bound",
        "the weighted estimate of a bound has the expectation of uniform times",
        "1e-6",
        _same_bound,
        _DISTRIBUTION,
        rests_on=("integrates", "inverse", "weight"),
    ),
)

verify = verifier(*CLAIMS, *PART_CLAIMS)


def _no_breaks(process: ForwardProcess) -> str:
    return "" if process.breaks else "it has no windows"


def _no_levels(process: ForwardProcess) -> str:
    return "" if isinstance(process, HasLevelWeights) else "levels have no separate weights"


PROCESS_CLAIMS = (
    Claim(
        "times",
        "own density",
        "time_density returns a density of times",
        "1e-12",
        _own_density,
        means=("time_density must return a ddlib.times.TimeDensity that is positive inside (0, 1)"),
    ),
    Claim(
        "times",
        "efficient",
        "time_density has nearly the least variance",
        "2 times the least",
        _efficient,
        rests_on=("own density",),
    ),
    Claim(
        "times",
        "float32 times",
        "at float32 times around ends of windows the bound has the integral over all times",
        "1e-4",
        _float32_times,
        applies=_no_breaks,
    ),
    Claim(
        "times",
        "tails",
        "tail_exponents are those of the mean square after t = 0 and starts of windows",
        "0.2",
        _tails,
    ),
    Claim(
        "times",
        "moments",
        "time_moments are mean and mean square of weight times divergence per level",
        "relative 1e-9",
        _moments,
        ({"t": 0.5}, {"t": 1e-4}),
        ({"t": 0.99},),
        _no_levels,
    ),
)
"""Claims about ``time_density`` of every process."""
