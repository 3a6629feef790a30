"""Schedules of edges whose flux is finite where they begin and end inside (0, 1)."""

import math
from typing import Any

import torch
from torch import Tensor

from ddlib.schedules import Schedule

WIDTH = 2.0**-11
"""Width of a chord at an end of a window, 2^13 spacings of float32 below 1."""

_NEAR = torch.tensor([1e-4, 1e-7], dtype=torch.float64, device="cpu")
"""Distances from an end at which exponents are measured, relative to the length of the window."""

_FINITE = 0.99
"""Exponents from which on a flux does not diverge, up to the error of the measurement."""


class Chord(Schedule):
    r"""Another schedule whose survival, :math:`\alpha^\gamma` at speed gamma, is linear between two
    times.

    So the flux over the edge is constant there. It is unchanged before and after.

    Args:
        schedule: the other schedule.
        speed: gamma, positive.
        low: time from which the survival is linear.
        high: time up to which it is linear, more than ``low``.
    """

    def __init__(self, schedule: Schedule, speed: float | Tensor, low: float, high: float) -> None:
        self.schedule = schedule
        self.speed = speed
        self.low = low
        self.high = high
        # scalars of the CPU are constants on every device, to which a process may be moved later
        ends = torch.tensor([low, high], dtype=torch.float64, device="cpu")
        self._before, self._after = schedule.hazard(ends)
        passed = self._after - self._before
        passed = (
            passed * speed if bool(passed.isfinite()) else passed
        )  # infinity has no derivative by the speed
        self._stay, self._leave = torch.exp(-passed), -torch.expm1(-passed)

    @property
    def support(self) -> tuple[float, float]:
        return self.schedule.support

    @property
    def kinks(self) -> tuple[float, ...]:
        return *self.schedule.kinks, self.low, self.high

    def alpha(self, t: Any, xp: Any = torch) -> Any:
        return torch.exp(-self.hazard(t))

    def rate(self, t: Tensor) -> Tensor:
        slope = self._leave / (self.high - self.low) / self.speed
        return torch.where(self._acts(t), slope / self._survival(t), self.schedule.rate(t))

    def hazard(self, t: Tensor) -> Tensor:
        share = ((t - self.low) / (self.high - self.low)).clamp(0, 1)
        # the logarithm of a number near 1 has no relative accuracy
        log_survival = torch.where(
            share < 0.5, torch.log1p(-self._leave * share.clamp_max(0.5)), self._survival(t).log()
        )
        return torch.where(
            self._acts(t), self._before - log_survival / self.speed, self.schedule.hazard(t)
        )

    def time_of(self, hazard: Tensor) -> Tensor:
        left = -torch.expm1(-self.speed * (hazard - self._before).clamp_min(0))
        time = self.low + (self.high - self.low) * (left / self._leave).clamp(0, 1)
        return torch.where(
            (hazard > self._before) & (hazard < self._after), time, self.schedule.time_of(hazard)
        )

    def _survival(self, t: Tensor) -> Tensor:
        """Survival from ``low`` to t at this speed."""
        remaining = ((self.high - t) / (self.high - self.low)).clamp(torch.finfo(t.dtype).tiny, 1)
        return self._stay + self._leave * remaining

    def _acts(self, t: Tensor) -> Tensor:
        return (t > self.low) & (t < self.high)


def finite_flux(schedule: Schedule, speed: float | Tensor) -> Schedule:
    r"""Return a schedule with a finite flux at its ends inside (0, 1).

    The same one if its flux is finite already.

    Where :math:`\alpha^\gamma` behaves like :math:`(end - t)^p` with p < 1, its derivative, the
    flux, diverges. Float32 has no times that are close enough to such an end: a share of
    :math:`10^{-8 p}` of the tokens jumps within the last spacing, 16 % for p = 0.1. So the survival
    is linear in the last 2^-11 of time, or in half of a shorter window: the same tokens jump, at a
    constant flux. For one edge this is a change of the time at which the tokens jump, which changes
    the bound only through the network's dependence on time. The same holds after a start :math:`1 -
    \alpha \sim (t - start)^q` with q < 1. At t = 0 floating-point numbers are dense, and at t = 1
    the prior term of a bound counts what is left.

    Args:
        schedule: the schedule of an edge.
        speed: the speed of the edge.
    """
    start, end = schedule.support
    width = min(WIDTH, (end - start) / 2)
    near = (end - start) * _NEAR
    per_e_fold = math.log(float(_NEAR[0] / _NEAR[1]))
    result = schedule
    if start > 0:
        late, early = schedule.hazard(start + near).log().tolist()
        if (late - early) / per_e_fold < _FINITE:
            result = Chord(result, speed, start, start + width)
    if end < 1:
        early, late = schedule.hazard(end - near).tolist()
        if float(speed) * (late - early) / per_e_fold < _FINITE:
            result = Chord(result, speed, end - width, end)
    return result
