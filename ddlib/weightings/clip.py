"""Weighting that clips the weights of the bound."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import require
from ddlib.weightings.base import Weighting


class Clip(Weighting):
    """Weights of the bound, clipped to an interval, so that a few draws with huge weights do not
    dominate the loss.

    HDLM and GIDD clip at 2 or 10. Without arguments the weights are those of the bound.

    Args:
        high: the largest weight, in nats per nat of divergence; default no limit.
        low: the smallest nonzero weight.

    Raises:
        TypeError: not numbers.
        ValueError: NaN, or not 0 <= low <= high, high > 0.
    """

    def __init__(self, high: float | None = None, *, low: float = 0.0) -> None:
        self.declare(high=high)
        high = math.inf if high is None else high  # in a YAML file, null stands for no limit
        for name, value in (("high", high), ("low", low)):
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{name} is {value!r}, must be a number")
        require(
            0 <= low <= high and high > 0,
            f"low is {low}, high {high}, must be 0 <= low <= high, high > 0",
        )
        self.high, self.low = float(high), float(low)

    @property
    def bound(self) -> bool:
        return self.high == math.inf and self.low == 0

    @property
    def limit(self) -> float:
        return self.high

    @property
    def about(self) -> str:
        clipped = (
            [f"clipped at {self.high:g}"]
            if self.high < math.inf
            else []
            if self.low
            else ["not clipped"]
        )
        return ", ".join(clipped + [f"no weight below {self.low:g}"] * (self.low > 0))

    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        return torch.where(weight > 0, weight.clamp(self.low, self.high), 0.0)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(2.0), cls(10.0, low=0.5)]
