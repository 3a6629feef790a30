"""Times at which to noise a batch: independent, stratified or antithetic, from any density."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.times.base import (
    WHOLE,
    Interval,
    TimeDensity,
    Uniform,
    check_density,
    check_interval,
    position_in,
)
from ddlib.utils.random import Generator, KeyedGenerator, home_of, rand
from ddlib.utils.validation import check_count, due, require, warn_once

_UNIFORM = Uniform()


def _strata(slots: Tensor, generator: Generator, within: Tensor, count: int) -> Tensor:
    """One uniform time per slot, slots spread evenly over [0, 1)."""
    if isinstance(generator, KeyedGenerator):
        # a shift common to all would be an error of the mean that no difference of two rows can
        # tell
        return (generator.scramble(slots, reverse=True) + within) / 2**32
    # without the turn the first row would always be early: its own bound would be biased
    turn = (rand((1,), generator, within.device) * count).to(torch.int64)
    return ((slots + turn) % count + within) / count


def _iid(n: int, generator: Generator, device: torch.device) -> Tensor:
    return rand((n,), generator, device)


def _in_strata(n: int, generator: Generator, device: torch.device) -> Tensor:
    slots = (
        generator.index if isinstance(generator, KeyedGenerator) else torch.arange(n, device=device)
    )
    return _strata(slots, generator, rand((n,), generator, device), n)


def _antithetic(n: int, generator: Generator, device: torch.device) -> Tensor:
    within = rand((n,), generator, device)
    if isinstance(generator, KeyedGenerator):
        # partners may sit on different ranks and cannot share a draw; the scrambling alone makes
        # the time uniform
        index = generator.index
        within = torch.full_like(within, 0.5)
    else:
        index = torch.arange(n, device=device)
        within = within[index // 2 * 2]
    t = _strata(index // 2, generator, within, (n + 1) // 2)
    return torch.where(index % 2 == 0, t, 1 - t)


def _check_positions(generator: KeyedGenerator, strata: bool) -> None:
    """Warn of an index that holds no positions of a global order: equal numbers, or ones drawn from
    a data set.

    Positions of one process, of every n-th process and of accumulated batches lie side by side, or
    a constant apart. The median of their distances, over the greatest common divisor, is then 1.
    For n numbers drawn from N it is about 0.7 N / n. The threshold allows for rows picked from a
    batch: few of them may lie further apart than many.
    """
    if generator.scattered or len(generator.index) < 2 or not due(generator.index):
        return
    gaps = generator.index.sort().values.diff()
    must = (
        "must be each example's position in the global order, such as step * batch + "
        "torch.arange(batch)"
    )
    if not bool(gaps.min()):
        twice = generator.index.sort().values[:-1][gaps == 0][0]
        warn_once(
            "keyed twice",
            f"the index of the KeyedGenerator holds {int(twice)} twice: these rows have the same "
            "time and noise; it "
            f"{must}, or pass scattered=True if rows share their noise intentionally",
        )
        return
    median = int(gaps.median())
    limit = 2 + 64 / len(gaps)
    if strata and median > limit and median > limit * math.gcd(*gaps.tolist()):
        warn_once(
            "keyed apart",
            f"the values in the index of the KeyedGenerator are {median} apart (the median of "
            f"{len(gaps)} "
            "distances), like numbers of random examples: times are then not stratified, and means "
            "over them have a "
            f"larger error; it {must}, or pass scattered=True if other calls use the positions "
            "between them",
        )


_METHODS = {"iid": _iid, "stratified": _in_strata, "antithetic": _antithetic}


def sample_times(
    n: int,
    method: str = "stratified",
    generator: Generator = None,
    *,
    density: TimeDensity | None = None,
    interval: tuple[float, float] = (0.0, 1.0),
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "n"]:
    """Times for ``n`` sequences, each uniform on ``interval``, or by ``density`` within it.

    ``"iid"`` draws them independently. ``"stratified"`` puts one in each of n equal slices.
    ``"antithetic"`` does so for pairs (t, 1 - t) of neighbours. Under a density the slices are of
    equal probability: uniforms so drawn go through the inverse of its distribution function, and a
    mean over times counts each ``density.weight(t)``.

    No time is rounded up to 1, where weights may be infinite.

    With a ``KeyedGenerator`` the slices are those of a scrambled van der Corput sequence over the
    global example index: each aligned window of 2^k consecutive indices has exactly one time in
    each of the 2^k equal slices, anywhere in it. So stratification holds over ranks and gradient
    accumulation with no communication, and an example's time does not depend on its process. The
    index must therefore hold positions in the order of training, not numbers of examples in a data
    set. Where it seems not to (numbers that occur twice, or lie as far apart as random ones do), a
    ``ddlib.utils.validation.UsageWarning`` is issued once; a batch of one or two rows, and an index
    on an accelerator, cannot be judged. Another call with the same generator draws other times, as
    every draw of a generator is a new one; another generator with the same seed, step and index
    draws the same ones.

    Args:
        n: number of sequences; with a KeyedGenerator the length of its index.
        method: "iid", "stratified" or "antithetic".
        generator: source of randomness.
        density: of the times; None is uniform.
        interval: (low, high) with 0 <= low < high <= 1, e.g. (eps, 1 - eps).
        dtype: default torch's default dtype.
        device: default the generator's device.

    Raises:
        TypeError: a density or generator of another kind.
        ValueError: unknown method, n < 1, n not the generator's length, a bad interval, or a
            density that is negative, 0 inside (0, 1) or does not integrate to one.

    Example:
        >>> from ddlib.times import Tabulated
        >>> late = Tabulated([0.0, 0.5, 1.0], [1.0, 3.0])
        >>> t = sample_times(8, density=late)
        >>> int((t > 0.5).sum()), round(float(late.weight(t).mean()), 6)
        (6, 1.0)
    """
    require(dtype is None or dtype.is_floating_point, f"dtype is {dtype}, must be floating point")
    check_interval(interval)
    density = check_density(density) or _UNIFORM
    return round_times(_inverse(_units(n, method, generator, device), density, interval), dtype)


def stratified_uniforms(
    n: int, generator: Generator = None, device: torch.device | str | None = None
) -> Float64[Tensor, "n"]:
    """Return uniform numbers in [0, 1), one in each of n equal slices, as ``sample_times`` does."""
    return round_times(_units(n, "stratified", generator, device), torch.float64)


def _units(
    n: int, method: str, generator: Generator, device: torch.device | str | None
) -> Float64[Tensor, "n"]:
    """Check the arguments of ``sample_times`` and draw uniform numbers in [0, 1]."""
    check_count("n", n)
    require(
        method in _METHODS, f"method is {method!r}, must be one of {', '.join(map(repr, _METHODS))}"
    )
    home = home_of(generator)
    if isinstance(generator, KeyedGenerator):
        require(
            n == len(generator.index),
            f"n is {n}, must be {len(generator.index)}, the number of examples of the generator",
        )
        _check_positions(generator, strata=method != "iid")
    return _METHODS[method](n, generator, torch.device(device) if device is not None else home)


class WeightedTimes(NamedTuple):
    """Times of draws, and the weight of each."""

    t: Float64[Tensor, "*n"]
    weight: Float64[Tensor, "*n"]
    s: Float64[Tensor, "*n"]
    """On a grid the time before, else ``t``."""


def times_of_uniforms(
    unit: Float64[Tensor, "*n"],
    density: TimeDensity | None = None,
    interval: Interval = (0.0, 1.0),
    steps: int | None = None,
) -> WeightedTimes:
    """Times by a density, from uniform numbers of any shape, in float64.

    ``round_times`` gives those of another dtype.

    Args:
        unit: in [0, 1).
        density: of the times; None is uniform.
        interval: as ``sample_times`` takes it.
        steps: of an even grid between its ends, None for none.

    Raises:
        TypeError, ValueError: as ``sample_times``; steps below 1 or not int, or so many that two
            times are one.
    """
    check_interval(interval)
    density = check_density(density) or _UNIFORM
    time = _inverse(unit, density, interval)
    if steps is None:
        return WeightedTimes(time, density.weight(time, interval), time)
    require(
        check_count("steps", steps) <= 10**9,
        f"steps is {steps}, must be at most 10^9: use the continuous bound instead of finer grids",
    )
    low, high = interval
    early = (position_in(interval, time) * steps).floor().clamp(0, steps - 1)
    # exact at both ends of the interval, unlike low + (high - low) * share
    s, t = (low * (1 - share) + high * share for share in (early / steps, (early + 1) / steps))
    return WeightedTimes(t, density.step_weight(s, t, interval), s)


def _inverse(unit: Tensor, density: TimeDensity, interval: Interval) -> Tensor:
    if interval != WHOLE:
        start, end = density.within(interval, unit)
        unit = start + (end - start) * unit
    # rounding of G and its inverse may leave the interval
    return density.inverse(unit).clamp(*interval)


def round_times(time: Float[Tensor, "*n"], dtype: torch.dtype | None = None) -> Float[Tensor, "*n"]:
    """In torch's default or another dtype, never up to 1: no time is drawn there, and weights may
    be infinite.
    """
    dtype = dtype or torch.get_default_dtype()
    return time.to(dtype).clamp(max=latest_time(dtype))


def latest_time(dtype: torch.dtype) -> float:
    """The last time before 1 that a dtype has. Later ones are not drawn: a bound ends here."""
    # numbers just below 1 are half as far apart as those above
    return 1 - torch.finfo(dtype).eps / 2
