"""Pace of any-order models: one position after the other, in a random order per sequence."""

from collections.abc import Sequence
from typing import Self

from jaxtyping import Float64
from torch import Tensor

from ddlib.paces.sequential import InTurn


class RandomOrder(InTurn):
    """Positions in a random order, drawn for each sequence: any-order models.

    The bound is the mean over orders. For masked diffusion and one position at a time it equals the
    bound of ``Together``, which also unmasks positions in a random order.
    """

    random = True

    def turns(self, chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        return chance.argsort(-1).argsort(-1).to(chance.dtype)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(2)]
