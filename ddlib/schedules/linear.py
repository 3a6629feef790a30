"""The linear clock."""

from typing import Any

import torch
from torch import Tensor

from ddlib.schedules.base import Schedule


class Linear(Schedule):
    r"""The linear clock 1 - t of MDLM and of the HDLM paper's examples.

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
