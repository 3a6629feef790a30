"""Pace of ordinary diffusion: one time for all positions."""

from jaxtyping import Float64
from torch import Tensor

from ddlib.paces.base import Pace


class Together(Pace):
    """One time for all positions of a sequence, t = u, as in ordinary diffusion."""

    def times(self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B"]:
        return u

    def speeds(self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B"]:
        return u.new_ones(u.shape)
