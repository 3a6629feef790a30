"""Logit-normal density of times."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.times.base import TimeDensity
from ddlib.utils.validation import check_number


class Bell(TimeDensity):
    r"""Logit-normal distribution of times (Esser et al., 2024).

    Normal log-odds, few times near 0 and 1.

    .. math:: \log \frac{t}{1-t} \sim N(\mathrm{mean}, \mathrm{spread}^2)

    If the bound's integrand does not vanish at the ends, as for masked diffusion, the few draws
    there have large weights. So this density is meant for training with ``weigh_times: false``
    rather than for a bound.

    Args:
        mean: mean of the log-odds, in [-3, 3]; 0 is t = 1/2.
        spread: standard deviation of the log-odds, in [0.5, 10]; about 1.8 is nearest to uniform.
            Below 0.5, g would underflow near 0 and 1.

    Raises:
        ValueError: a parameter out of range.
    """

    def __init__(self, mean: float = 0.0, spread: float = 1.0) -> None:
        self.mean = check_number("mean", mean, -3, 3, "in [-3, 3]")
        self.spread = check_number("spread", spread, 0.5, 10, "in [0.5, 10]")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(-1.0, 2.0)]

    def density(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        scaled = self._scaled(t)
        return torch.exp(-(scaled**2) / 2 - t.log() - torch.log1p(-t)) / (
            self.spread * math.sqrt(2 * math.pi)
        )

    def cumulative(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.special.ndtr(self._scaled(t))

    def inverse(self, u: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.special.expit(self.mean + self.spread * torch.special.ndtri(u))

    def _scaled(self, t: Tensor) -> Tensor:
        return (torch.logit(t) - self.mean) / self.spread
