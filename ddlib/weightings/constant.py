"""Weighting with one constant weight."""

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_number
from ddlib.weightings.base import Weighting


class Constant(Weighting):
    """One constant in place of every nonzero weight.

    For masks the loss is the mean cross-entropy of masked tokens.

    Args:
        value: the weight, in nats per nat of divergence.

    Raises:
        TypeError, ValueError: not a number in (0, 1e6].
    """

    def __init__(self, value: float = 1.0) -> None:
        self.value = check_number("value", value, 1e-6, 1e6, "in [1e-6, 1e6]")

    @property
    def about(self) -> str:
        return f"all weights {self.value:g}"

    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        return torch.where(weight > 0, self.value, 0.0).to(weight)
