"""Base class of time densities, with the importance weights of their draws, and the uniform
density.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.config.part import Part
from ddlib.utils.agreement import check_agreement
from ddlib.utils.bisection import bisect
from ddlib.utils.repr import format_part
from ddlib.utils.validation import require

INTERIOR = (1e-16, 1 - 2**-53)
"""Limits to which t is clamped before rates, bounds and weights are evaluated; at 0 and 1 these may
be infinite.
"""

_ROUGHLY = 0.05
"""Tolerance of a quadrature sum against the integral; jumps and cusps within a cell cause about
0.001.
"""

Interval = tuple[float, float]
"""Subinterval (low, high) of [0, 1] in which times are drawn."""

WHOLE: Interval = (0.0, 1.0)
"""All times."""


class TimeDensity(Part):
    r"""Density g(t) of the drawn times on [0, 1], with its distribution function G and the inverse
    of G.

    .. math:: \int_0^1 f(t)\, dt = E_{t \sim g}\left[\frac{f(t)}{g(t)}\right]

    So a bound that multiplies each draw by ``weight``, 1/g, has the same expectation for every
    density, and lower variance if g is large where f is. A subclass implements ``density`` and
    ``cumulative``, and overrides ``inverse`` if there is a closed form. g must be positive inside
    (0, 1); otherwise the bound would miss times that are never drawn. All methods act elementwise
    on float64. A subclass with another ``density`` or ``cumulative`` cannot inherit the other one
    or a closed form of ``inverse``: TypeError.

    Example:
        >>> class Late(TimeDensity):
        ...     def density(self, t):
        ...         return 0.5 + t
        ...     def cumulative(self, t):
        ...         return (t + t**2) / 2
        >>> Late().weight(torch.tensor([0.0, 0.5, 1.0]))
        tensor([2.0000, 1.0000, 0.6667], dtype=torch.float64)
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_agreement(cls, "density", "cumulative", "weight")
        check_agreement(cls, "cumulative", "density", "inverse", "weight")

    @abstractmethod
    def density(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """g(t), positive inside (0, 1); it integrates to one."""

    @abstractmethod
    def cumulative(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """G(t), the probability of a time before ``t``: 0 at 0, 1 at 1."""

    def inverse(self, u: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Return the time t with G(t) = ``u``, by bisection to 2^-60."""
        return bisect(lambda t: self.cumulative(t) < u, u)

    def weight(
        self, t: Float[Tensor, "*n"], interval: Interval = (0.0, 1.0)
    ) -> Float64[Tensor, "*n"]:
        """Importance weight of a draw: (G(high) - G(low)) / g(t), so that a mean over draws
        estimates the integral.

        At t = 0 and t = 1, where g may be 0 or infinite, g is evaluated a rounding error inside (0,
        1).

        Args:
            t: times drawn in ``interval``, any shape and floating dtype.
            interval: as in ``sample_times``.

        Raises:
            ValueError: a bad interval.
        """
        t = t.to(torch.float64).clamp(*INTERIOR)
        low, high = self.within(interval, t)
        return (high - low) / self.density(t)

    def step_weight(
        self, s: Float64[Tensor, "*n"], t: Float64[Tensor, "*n"], interval: Interval = (0.0, 1.0)
    ) -> Float64[Tensor, "*n"]:
        """Importance weight of the step from ``s`` to ``t``, so that a mean over draws estimates a
        sum over steps.
        """
        low, high = self.within(interval, t)
        return (high - low) / (self.cumulative(t) - self.cumulative(s))

    def within(self, interval: Interval, like: Float64[Tensor, "*n"]) -> tuple[Any, Any]:
        """Return G at both ends of an interval: floats for [0, 1], else float64 scalars on the
        device of ``like``.
        """
        check_interval(interval)
        low, high = interval
        if (low, high) == (0, 1):
            return 0.0, 1.0
        return self.cumulative(like.new_full((), low)), self.cumulative(like.new_full((), high))

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Instances on which a registered class is verified.

        Override if the constructor requires arguments.
        """
        return [cls()]

    def check(self) -> None:
        """Raise ValueError unless g is finite and positive inside (0, 1) and its integral is G,
        from 0 to 1.

        This is a rough check at about 2,000 times; ``dd.verify`` checks more precisely.
        """
        spread = torch.linspace(-16, 16, 257, dtype=torch.float64).sigmoid()
        name = type(self).__name__
        t = torch.cat([spread, torch.linspace(0, 1, 2049, dtype=torch.float64)[1:-1]]).unique()
        g = self.density(t)
        ends = self.cumulative(torch.tensor([0.0, 1.0], dtype=torch.float64))
        for bad, rule in (
            (~g.isfinite(), "must be finite"),
            (g < 0, "must not be negative"),
            (
                g == 0,
                "must be positive: the bound's weight is not 0 there, so times without draws "
                "would bias it",
            ),
        ):
            if bool(bad.any()):
                raise ValueError(
                    f"{name}: density({t[bad][0].item():.6g}) is {g[bad][0].item():.6g}, {rule}"
                )
        for value, end in zip(ends.tolist(), (0, 1), strict=True):
            rule = f"must be {end}: a density integrates to one"
            require(abs(value - end) < 1e-9, f"{name}: cumulative({end}) is {value:.6g}, {rule}")
        rise = self.cumulative(t).diff()
        for bad, rule in ((~rise.isfinite(), "is not finite near"), (rise < 0, "falls after")):
            if bool(bad.any()):
                raise ValueError(
                    f"{name}: cumulative {rule} t = {t[:-1][bad][0].item():.6g}, must rise from 0 "
                    "to 1"
                )
        middle = (t[1:] + t[:-1]) / 2
        apart = float((rise - self.density(middle) * t.diff()).abs().sum())
        require(
            apart < _ROUGHLY,
            f"{name}: cumulative and the integral of density differ by up to {apart:.3g}, must be "
            "equal",
        )
        u = torch.linspace(0, 1, 129, dtype=torch.float64)[1:-1]
        place = self.inverse(u)
        low, high = (self.cumulative((place + by).clamp(0, 1)) for by in (-1e-6, 1e-6))
        bad = ~((low <= u + 1e-6) & (high >= u - 1e-6))
        if bool(bad.any()):
            raise ValueError(
                f"{name}: inverse({u[bad][0].item():.6g}) is {place[bad][0].item():.6g}, where "
                f"cumulative is not {u[bad][0].item():.6g}"
            )

    def __repr__(self) -> str:
        return format_part(self, TimeDensity)

    @cached_property
    def _sound(self) -> bool:
        self.check()
        return True


class Uniform(TimeDensity):
    """Uniform distribution of times, g(t) = 1: the default density."""

    def density(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.ones_like(t)

    def cumulative(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return t

    def inverse(self, u: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return u

    def weight(self, t: Float[Tensor, "*n"], interval: Interval = WHOLE) -> Float64[Tensor, "*n"]:
        check_interval(interval)
        low, high = interval
        return torch.full_like(t, high - low, dtype=torch.float64)


def position_in(interval: Interval, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
    """Return the share of an interval that lies before times in it; [0, 1] takes no operation."""
    low, high = interval
    return t if interval == WHOLE else (t - low) / (high - low)


def time_in(interval: Interval, share: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
    """Return the time before which a share of an interval lies; [0, 1] takes no operation."""
    low, high = interval
    return share if interval == WHOLE else low + (high - low) * share


def check_interval(interval: Interval) -> None:
    """Raise ValueError unless an interval lies in [0, 1] and is not empty."""
    low, high = interval
    require(0 <= low < high <= 1, f"interval is {interval}, must satisfy 0 <= low < high <= 1")


def check_density(density: TimeDensity | None) -> TimeDensity | None:
    """Return ``density``, checked once per object.

    Raises:
        TypeError: not a density.
        ValueError: as ``TimeDensity.check``.
    """
    if density is not None:
        if not isinstance(density, TimeDensity):
            raise TypeError(f"density is {density!r}, must be a ddlib.times.TimeDensity or None")
        _ = density._sound
    return density
