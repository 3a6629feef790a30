"""Beta density of times."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.times.base import TimeDensity
from ddlib.utils.imports import imported
from ddlib.utils.validation import check_number


class Beta(TimeDensity):
    r"""Beta distribution of times.

    Concentrated in the middle or at the ends, depending on ``a`` and ``b``.

    .. math:: g(t) = \frac{t^{a-1} (1 - t)^{b-1}}{B(a, b)}

    a = b = 1 is uniform. With a parameter above 1, times near its end are drawn rarely and have
    large weights; below 1 they are drawn often. The distribution function and its inverse are
    computed by scipy on the CPU, so an accelerator waits for the host.

    Args:
        a: exponent at t = 0, in [0.1, 40]; the larger, the fewer times near 0.
        b: exponent at t = 1, in [0.1, 40]; the larger, the fewer times near 1. Above 40
            the density near an end is below the smallest number of float64.

    Raises:
        ValueError: a parameter out of range.
    """

    def __init__(self, a: float, b: float) -> None:
        self.a = check_number("a", a, 0.1, 40, "in [0.1, 40]")
        self.b = check_number("b", b, 0.1, 40, "in [0.1, 40]")
        self._log_total = math.lgamma(self.a) + math.lgamma(self.b) - math.lgamma(self.a + self.b)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(0.5, 0.5), cls(2.0, 1.0), cls(3.0, 1.5)]

    def density(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.exp((self.a - 1) * t.log() + (self.b - 1) * torch.log1p(-t) - self._log_total)

    def cumulative(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return self._by("betainc", t)

    def inverse(self, u: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return self._by("betaincinv", u)

    def _by(self, name: str, values: Tensor) -> Tensor:
        function = getattr(
            imported("scipy.special"), name
        )  # slow to load, and most training does not need it
        found = torch.as_tensor(function(self.a, self.b, values.cpu().numpy()), dtype=torch.float64)
        return found.to(values.device)
