"""Schedule that is logistic in the log-odds of time."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ddlib.schedules import Schedule
from ddlib.utils.validation import check_number


class LogOdds(Schedule):
    r"""Schedule that is logistic in the log-odds of time: logit alpha = -steepness logit t, so that
    alpha(1/2) = 1/2.

    .. math:: \alpha(t) = \frac{(1-t)^k}{(1-t)^k + t^k}

    Args:
        steepness: the exponent k; 1 is the linear schedule.

    Raises:
        ValueError: steepness not in [0.25, 4].
    """

    def __init__(self, steepness: float = 2.0) -> None:
        self.steepness = check_number("steepness", steepness, 0.25, 4, "in [0.25, 4]")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(0.5), cls(1.0), cls(4.0)]

    def alpha(self, t: Any, xp: Any = torch) -> Any:
        kept = (1 - t) ** self.steepness
        gone = t**self.steepness
        return kept / (kept + gone)

    def alpha_prime(self, t: Tensor) -> Tensor:
        kept = (1 - t) ** self.steepness
        gone = t**self.steepness
        return -self.steepness * (t * (1 - t)) ** (self.steepness - 1) / (kept + gone) ** 2

    def rate(self, t: Tensor) -> Tensor:
        kept = (1 - t) ** self.steepness
        gone = t**self.steepness
        return self.steepness * t ** (self.steepness - 1) / ((1 - t) * (kept + gone))

    def hazard(self, t: Tensor) -> Tensor:
        return torch.log1p((t / (1 - t)) ** self.steepness)

    def inverse(self, alpha: Tensor) -> Tensor:
        return torch.special.expit(-torch.special.logit(alpha) / self.steepness)
