"""The beta distribution."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.times.base import TimeDensity
from ddlib.utils.validation import check_number


class Beta(TimeDensity):
    r"""More times in the middle or at the ends, as its two numbers say.

    .. math:: g(t) = \frac{t^{a-1} (1 - t)^{b-1}}{B(a, b)}

    a = b = 1 is uniform. Above 1 an end is drawn rarely and weighs much, below 1 often. Its distribution function and
    the inverse are scipy's, on the CPU: on an accelerator the host waits for them.

    Args:
        a: how little is drawn at t = 0, in [0.1, 100].
        b: how little is drawn at t = 1, in [0.1, 100].

    Raises:
        ValueError: a number outside.
    """

    def __init__(self, a: float, b: float) -> None:
        self.a = check_number("a", a, 0.1, 100, "in [0.1, 100]")
        self.b = check_number("b", b, 0.1, 100, "in [0.1, 100]")
        self._log_total = math.lgamma(self.a) + math.lgamma(self.b) - math.lgamma(self.a + self.b)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(0.5, 0.5), cls(2.0, 1.0), cls(3.0, 1.5)]

    def density(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.exp((self.a - 1) * t.log() + (self.b - 1) * torch.log1p(-t) - self._log_total)

    def cumulative(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        from scipy.special import betainc  # here, for whoever imports ddlib to train need not wait for it

        return self._by(betainc, t)

    def inverse(self, u: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        from scipy.special import betaincinv

        return self._by(betaincinv, u)

    def _by(self, function: Callable[..., Any], values: Tensor) -> Tensor:
        found = torch.as_tensor(function(self.a, self.b, values.cpu().numpy()), dtype=torch.float64)
        return found.to(values.device)
