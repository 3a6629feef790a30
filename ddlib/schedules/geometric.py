"""Log-linear (geometric) noise schedule."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from ddlib.schedules.base import Schedule
from ddlib.utils.validation import check_number, require


class Geometric(Schedule):
    r"""Log-linear total noise; alpha is neither exactly 1 at t = 0 nor exactly 0 at t = 1.

    .. math:: \alpha(t) = \exp(-\sigma_{min}^{1-t} \sigma_{max}^{t})

    The "geometric" noise of SEDD (Lou et al., 2024). It starts at exp(-sigma_min) and ends at
    exp(-sigma_max), so the bound has a reconstruction term at t = 0 and a prior term at t = 1.

    Args:
        sigma_min: total noise at t = 0, > 0.
        sigma_max: total noise at t = 1, > sigma_min, at most 500.

    Raises:
        ValueError: 0 < sigma_min < sigma_max <= 500 does not hold.
    """

    exact_ends: ClassVar[bool] = False

    def __init__(self, sigma_min: float = 1e-4, sigma_max: float = 20.0) -> None:
        self.sigma_min = check_number("sigma_min", sigma_min, 1e-12, 500, "in [1e-12, 500]")
        self.sigma_max = check_number("sigma_max", sigma_max, 1e-12, 500, "in [1e-12, 500]")
        require(
            sigma_min < sigma_max,
            f"sigma_min is {sigma_min}, must be below sigma_max = {sigma_max}",
        )

    def alpha(self, t: Any, xp: Any = torch) -> Any:
        return xp.exp(-self.sigma_min * (self.sigma_max / self.sigma_min) ** t)

    def rate(self, t: Tensor) -> Tensor:
        return math.log(self.sigma_max / self.sigma_min) * self.hazard(t)

    def hazard(self, t: Tensor) -> Tensor:
        return self.sigma_min * (self.sigma_max / self.sigma_min) ** t

    def inverse(self, alpha: Tensor) -> Tensor:
        return (-alpha.log() / self.sigma_min).log() / math.log(self.sigma_max / self.sigma_min)
