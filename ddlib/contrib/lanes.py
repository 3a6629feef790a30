"""Pace of lanes: contiguous parts of a sequence, the next position of all parts at once."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.paces.sequential import InTurn
from ddlib.utils.validation import check_count, require


class Lanes(InTurn):
    """Contiguous lanes of equal length: the first position of every lane, then the second of every
    lane, and so on.

    In language dependence falls with distance. With n lanes, positions that move together are at
    least 1/n of the sequence apart, so little is lost by drawing them independently (theory section
    20). One lane is ``LeftToRight``, and as many lanes as positions are ``Together``.

    Args:
        lanes: number of lanes, which divides the length of a sequence; as many positions move at
            once.

    Raises:
        TypeError, ValueError: lanes not int, below 1, or (when times are computed) not a divisor of
            the length.

    Example:
        >>> Lanes(2).turns(torch.zeros(1, 8).double()).int().tolist()
        [[0, 2, 4, 6, 1, 3, 5, 7]]
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = check_count("lanes", lanes)
        super().__init__(self.lanes)

    def parts(self, length: int) -> int:
        require(
            length % self.lanes == 0,
            f"lanes is {self.lanes}, must divide the length of the sequence, {length}",
        )
        return length // self.lanes

    def turns(self, chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        place = torch.arange(chance.shape[1], device=chance.device)
        lane = self.parts(chance.shape[1])
        turn = (place % lane) * self.lanes + place // lane
        return turn.to(chance.dtype).expand_as(chance)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(1), cls(2), cls(3)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lanes={self.lanes})"
