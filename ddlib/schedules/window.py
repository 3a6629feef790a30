"""Schedule that acts within an interval of time."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ddlib.schedules.base import Schedule
from ddlib.schedules.cosine import Cosine
from ddlib.schedules.linear import Linear
from ddlib.utils.validation import check_number, require


class Window(Schedule):
    r"""Another schedule, run from ``start`` to ``end``: alpha is 1 before, and 0 after.

    .. math:: \alpha(t) = \alpha_{inner}\left(\frac{t - start}{end - start}\right),
        \quad start \le t \le end

    One schedule per edge, ``Hierarchical(tree, [...])``, may have windows: an edge acts only within
    its own. Windows that do not overlap are coarse to fine: all clusters are generated before the
    first token.

    Args:
        schedule: the schedule within the window; with exact ends.
        start: time from which tokens jump, in [0, 1).
        end: time at which the last token has jumped, in (0, 1], more than ``start``.

    Raises:
        TypeError: not a schedule.
        ValueError: start or end outside its limits, a window shorter than 1e-6, or a schedule
            without exact ends.

    Example:
        >>> Window(Linear(), 0.5, 1.0).alpha(torch.tensor([0.25, 0.5, 0.75, 1.0]))
        tensor([1.0000, 1.0000, 0.5000, 0.0000])
    """

    def __init__(self, schedule: Schedule, start: float, end: float) -> None:
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule is {schedule!r}, must be a ddlib.schedules.Schedule")
        require(
            schedule.exact_ends,
            f"schedule is {schedule!r}, must be 1 at its start and 0 at its end in a window",
        )
        self.schedule = schedule
        self.start, self.end = (
            check_number("start", start, 0, 1, "in [0, 1)"),
            check_number("end", end, 0, 1, "in (0, 1]"),
        )
        require(
            self.end - self.start >= 1e-6,
            f"the window from {start} to {end} is too short, must be at least 1e-6",
        )

    @property
    def support(self) -> tuple[float, float]:
        low, high = self.schedule.support  # narrower than [0, 1] for a window of a window
        length = self.end - self.start
        return self.start + low * length, self.end if high == 1 else self.start + high * length

    @property
    def kinks(self) -> tuple[float, ...]:
        length = self.end - self.start
        inner = (self.start + kink * length for kink in self.schedule.kinks)
        return tuple(sorted({*self.support, *inner}))

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(Linear(), 0.0, 0.6), cls(Cosine(), 0.3, 1.0)]

    def alpha(self, t: Any, xp: Any = torch) -> Any:
        if xp is torch:
            return torch.where(t < self.end, self.schedule.alpha(self._inner(t)), 0.0)
        if xp.__name__ == "sympy":
            # exactly: sympy keeps 15 digits of a float
            start = xp.Rational(self.start)
            end = xp.Rational(self.end)
            inner = self.schedule.alpha((t - start) / (end - start), xp)
            return xp.Piecewise((1, t < start), (inner, t < end), (0, True))
        return self.schedule.alpha(min(max((t - self.start) / (self.end - self.start), 0), 1), xp)

    def alpha_prime(self, t: Tensor) -> Tensor:
        return torch.where(
            self._acts(t), self.schedule.alpha_prime(self._inner(t)) / (self.end - self.start), 0.0
        )

    def rate(self, t: Tensor) -> Tensor:
        return torch.where(
            self._acts(t), self.schedule.rate(self._inner(t)) / (self.end - self.start), 0.0
        )

    def hazard(self, t: Tensor) -> Tensor:
        return torch.where(t < self.end, self.schedule.hazard(self._inner(t)), torch.inf)

    def inverse(self, alpha: Tensor) -> Tensor:
        return self.start + (self.end - self.start) * self.schedule.inverse(alpha)

    def time_of(self, hazard: Tensor) -> Tensor:
        return self.start + (self.end - self.start) * self.schedule.time_of(hazard)

    def falls(self, t: Tensor) -> Tensor:
        """Return whether alpha decreases between consecutive times.

        True outside the window, where it is constant.
        """
        outside = (t[1:] <= self.start) | (t[:-1] >= self.end)
        return outside | self.schedule.falls(self._inner(t))

    def _inner(self, t: Tensor) -> Tensor:
        """Time of the inner schedule; exact near the end, where 1 minus it counts."""
        length = self.end - self.start
        early = (t - self.start) / length
        late = 1 - (self.end - t) / length
        return torch.where(early < 0.5, early, late).clamp(0, 1)

    def _acts(self, t: Tensor) -> Tensor:
        return (t >= self.start) & (t < self.end)


def in_turn(schedules: Sequence[Schedule], overlap: float = 0.0) -> list[Window]:
    """Return windows of equal length, one for each schedule, in their order.

    Args:
        schedules: the schedules within the windows.
        overlap: in [0, 1]; 0 for windows [i/n, (i + 1)/n], 1 for [0, 1] each.
    """
    n = len(schedules)
    starts = [(1 - overlap) * i / n for i in range(n)]
    ends = [start + overlap for start in starts[1:]] + [1.0]
    return [Window(*each) for each in zip(schedules, starts, ends, strict=True)]
