"""The linear schedule."""

from typing import Any

import torch
from torch import Tensor

from ddlib.schedules.base import Schedule


class Linear(Schedule):
    r"""Linear schedule 1 - t, as in MDLM and in the examples of the HDLM paper.

    .. math:: \alpha(t) = 1 - t
    """

    def alpha(self, t: Any, xp: Any = torch) -> Any:
        return 1 - t

    def rate(self, t: Tensor) -> Tensor:
        return 1 / (1 - t)

    def hazard(self, t: Tensor) -> Tensor:
        return -torch.log1p(-t)

    def inverse(self, alpha: Tensor) -> Tensor:
        return 1 - alpha
