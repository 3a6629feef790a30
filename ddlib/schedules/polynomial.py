"""Polynomial schedule: powers of the linear schedule."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ddlib.schedules.base import Schedule
from ddlib.utils.validation import check_number


class Polynomial(Schedule):
    r"""Power of the linear schedule: its rate is ``power`` times the rate of the linear one.

    .. math:: \alpha(t) = (1 - t)^{power}

    Args:
        power: > 0.

    Raises:
        ValueError: power not in (0, 1000].
    """

    def __init__(self, power: float) -> None:
        self.power = check_number("power", power, 1e-3, 1e3, "in [0.001, 1000]")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(0.5), cls(3.0)]

    def alpha(self, t: Any, xp: Any = torch) -> Any:
        return (1 - t) ** self.power

    def rate(self, t: Tensor) -> Tensor:
        return self.power / (1 - t)

    def hazard(self, t: Tensor) -> Tensor:
        return -self.power * torch.log1p(-t)

    def inverse(self, alpha: Tensor) -> Tensor:
        return -torch.expm1(alpha.log() / self.power)

    def time_of(self, hazard: Tensor) -> Tensor:
        # exp(-hazard) underflows beyond 745, which a large power reaches long before t = 1
        return torch.where(
            hazard < 700, super().time_of(hazard), -torch.expm1(-hazard / self.power)
        )
