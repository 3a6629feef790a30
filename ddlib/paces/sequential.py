"""Base class of paces in which groups of positions move one after the other."""

from abc import abstractmethod

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.paces.base import Pace
from ddlib.utils.validation import check_count, require


class InTurn(Pace):
    r"""Groups of ``size`` positions that move in turn: earlier groups are data, later groups are noise.

    With n turns, and :math:`k_l` the turn of position l in the order of generation,

    .. math:: t_l(u) = \mathrm{clip}(n u - (n - 1 - k_l),\ 0,\ 1)

    so a turn drawn uniformly has weight n.

    Args:
        size: number of positions that move at once; must divide the length of a sequence.

    Raises:
        TypeError, ValueError: size not int, below 1, or (when times are computed) not a divisor of the length.
    """

    def __init__(self, size: int = 1) -> None:
        self.size = check_count("size", size)

    @abstractmethod
    def turns(self, chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        """Return the rank of each position in the order of generation, a permutation of 0..L-1."""

    def parts(self, length: int) -> int:
        require(length % self.size == 0, f"size is {self.size}, must divide the length of the text, {length}")
        return length // self.size

    def times(self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        place, turn, _ = self._path(u, chance)
        return (place - turn).clamp(0, 1)

    def speeds(self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        place, turn, parts = self._path(u, chance)  # segments are half open, so that one group moves at a time
        return parts * (place.floor().clamp_max(parts - 1) == turn).to(u.dtype)

    def _path(self, u: Tensor, chance: Tensor) -> tuple[Tensor, Tensor, int]:
        parts = self.parts(chance.shape[1])
        return parts * u[:, None], parts - 1 - torch.div(self.turns(chance), self.size, rounding_mode="floor"), parts
