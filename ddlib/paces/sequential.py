"""Positions that move in turn, so many at a time."""

from abc import abstractmethod

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.paces.base import Pace
from ddlib.utils.validation import check_count, require


class InTurn(Pace):
    r"""``size`` positions move at once; those whose turn is later are noise, those whose turn was before are data.

    Of n turns, :math:`k_l` that of position l on the way from noise to data,

    .. math:: t_l(u) = \mathrm{clip}(n u - (n - 1 - k_l),\ 0,\ 1)

    so a turn that is drawn at random counts n times.

    Args:
        size: positions that move at once; it must divide the length of a sequence.

    Raises:
        TypeError, ValueError: size not int, below 1, or, when it is met, no divisor of the length.
    """

    def __init__(self, size: int = 1) -> None:
        self.size = check_count("size", size)

    @abstractmethod
    def turns(self, chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        """The place of each position in the order in which a sequence is drawn, 0 first, each place but once."""

    def parts(self, length: int) -> int:
        require(length % self.size == 0, f"size is {self.size}, must divide the length of the text, {length}")
        return length // self.size

    def times(self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        place, turn, _ = self._path(u, chance)
        return (place - turn).clamp(0, 1)

    def speeds(self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        place, turn, parts = self._path(u, chance)  # parts are half open, so that one moves at a time
        return parts * (place.floor().clamp_max(parts - 1) == turn).to(u.dtype)

    def _path(self, u: Tensor, chance: Tensor) -> tuple[Tensor, Tensor, int]:
        parts = self.parts(chance.shape[1])
        return parts * u[:, None], parts - 1 - torch.div(self.turns(chance), self.size, rounding_mode="floor"), parts
