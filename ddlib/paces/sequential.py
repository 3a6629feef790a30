"""Base class of paces in which groups of positions move one after the other."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.paces.base import Pace
from ddlib.utils.agreement import check_agreement
from ddlib.utils.validation import check_count, require


class InTurn(Pace):
    r"""Groups of ``size`` positions that move in turn: earlier groups are data, later groups are
    noise.

    With n turns, and :math:`k_l` the turn of position l in the order of generation,

    .. math:: t_l(u) = \mathrm{clip}(n u - (n - 1 - k_l),\ 0,\ 1)

    so a turn drawn uniformly has weight n.

    Args:
        size: number of positions that move at once; must divide the length of a sequence.

    Raises:
        TypeError, ValueError: size not int, below 1, or (when times are computed) not a divisor of
            the length.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_agreement(cls, "turns", "block")

    def __init__(self, size: int = 1) -> None:
        self.size = check_count("size", size)

    @abstractmethod
    def turns(self, chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        """Return the rank of each position in the order of generation, a permutation of 0..L-1."""

    def parts(self, length: int) -> int:
        require(
            length % self.size == 0,
            f"size is {self.size}, must divide the length of the sequence, {length}",
        )
        return length // self.size

    def times(
        self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]
    ) -> Float64[Tensor, "B L"]:
        place, turn, _ = self._path(u, chance)
        return (place - turn).clamp(0, 1)

    def speeds(
        self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]
    ) -> Float64[Tensor, "B L"]:
        # segments are half open, so that one group moves at a time
        place, turn, parts = self._path(u, chance)
        return parts * (place.floor().clamp_max(parts - 1) == turn).to(u.dtype)

    def _path(self, u: Tensor, chance: Tensor) -> tuple[Tensor, Tensor, int]:
        parts = self.parts(chance.shape[1])
        return (
            parts * u[:, None],
            parts - 1 - torch.div(self.turns(chance), self.size, rounding_mode="floor"),
            parts,
        )


class OfPicture(InTurn):
    """Groups of pixels that move in turn, in pictures whose pixels are in raster order.

    A subclass states the order.

    Args:
        shape: rows and columns of a picture, (H, W).
        size: number of pixels that move at once; must divide H W.

    Raises:
        TypeError, ValueError: not two numbers, a number not int or below 1; when times are
            computed, sequences of another length than H W, or a size that does not divide it.
    """

    def __init__(self, shape: Sequence[int], size: int = 1) -> None:
        self.shape = check_sides("shape", shape)
        super().__init__(size)

    @abstractmethod
    def order(self) -> Int64[Tensor, "L"]:
        """Compute the pixels in the order of generation, a permutation of 0..L-1."""

    @cached_property
    def ranks(self) -> Int64[Tensor, "L"]:
        """Rank of each pixel in the order of generation."""
        return self.order().argsort()

    def parts(self, length: int) -> int:
        check_pixels(self.shape, length)
        return super().parts(length)

    def turns(self, chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        return self.ranks.to(chance).expand_as(chance)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, size={self.size})"


def check_sides(name: str, sides: Sequence[int]) -> tuple[int, int]:
    """Return the two sides of a rectangle, checked.

    Raises:
        TypeError, ValueError: not two numbers, or a number not int or below 1.
    """
    if not isinstance(sides, Sequence) or isinstance(sides, str) or len(sides) != 2:
        raise TypeError(f"{name} is {sides!r}, must be two numbers, of rows and of columns")
    return check_count(f"{name}[0]", sides[0]), check_count(f"{name}[1]", sides[1])


def check_pixels(shape: tuple[int, int], length: int) -> None:
    """Raise ValueError unless a picture of this shape has ``length`` pixels."""
    pixels = shape[0] * shape[1]
    require(
        length == pixels,
        f"shape is {shape}, must have as many pixels as a sequence has positions, {length}",
    )
