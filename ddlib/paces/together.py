"""All positions of a sequence at one time."""

from jaxtyping import Float64
from torch import Tensor

from ddlib.paces.base import Pace


class Together(Pace):
    """All positions of a sequence have one time, as diffusion has it: t = u."""

    def times(self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B"]:
        return u

    def speeds(self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B"]:
        return u.new_ones(u.shape)
