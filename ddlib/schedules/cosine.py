"""The cosine schedule."""

import math
from typing import Any

import torch
from torch import Tensor

from ddlib.schedules.base import Schedule


class Cosine(Schedule):
    r"""Cosine schedule: flat at the data, steep at the noise.

    .. math:: \alpha(t) = \cos(\pi t / 2)
    """

    def alpha(self, t: Any, xp: Any = torch) -> Any:
        return xp.cos(xp.pi * t / 2)

    def rate(self, t: Tensor) -> Tensor:
        # tan diverges at t = 1, where its argument has lost the digits of 1 - t; the clamps keep
        # the branch that is not taken finite
        early = torch.tan(math.pi / 2 * t.clamp_max(0.5))
        late = torch.tan(math.pi / 2 * (1 - t.clamp_min(0.5)))
        return math.pi / 2 * torch.where(t < 0.5, early, 1 / late)

    def hazard(self, t: Tensor) -> Tensor:
        # cos rounds to 1 near t = 0, so the logarithm is that of 1 - sin^2
        early = -0.5 * torch.log1p(-(torch.sin(math.pi / 2 * t.clamp_max(0.5)) ** 2))
        return torch.where(t < 0.5, early, -torch.sin(math.pi / 2 * (1 - t)).log())

    def inverse(self, alpha: Tensor) -> Tensor:
        # acos loses half of the digits where alpha is near 1
        return 2 / math.pi * torch.atan2(((1 - alpha) * (1 + alpha)).sqrt(), alpha)
