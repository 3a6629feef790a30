"""Uniform density of times."""

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.times.base import TimeDensity


class Uniform(TimeDensity):
    """Uniform distribution of times, g(t) = 1: the default density."""

    def density(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.ones_like(t)

    def cumulative(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return t

    def inverse(self, u: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return u
