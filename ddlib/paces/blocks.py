"""Paces of block diffusion and autoregression: one block after the other, from left to right."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.paces.sequential import InTurn


class Blocks(InTurn):
    """Blocks of ``size`` positions from left to right.

    Earlier blocks are data, later blocks are noise.

    Block diffusion (Arriola et al., 2025). A single block is ``Together``; masked diffusion with
    blocks of size 1 is the autoregressive likelihood.

    Example:
        >>> u = torch.tensor([0.25, 0.75]).double()
        >>> Blocks(2).times(u, torch.zeros(2, 4).double()).tolist()
        [[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]]
    """

    @property
    def block(self) -> int:
        return self.size

    def turns(self, chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        return torch.arange(chance.shape[1], dtype=chance.dtype, device=chance.device).expand_as(
            chance
        )

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(1), cls(2)]


class LeftToRight(Blocks):
    """One position after the other, as ``Blocks(1)``: with masks, autoregression."""

    def __init__(self) -> None:
        super().__init__(1)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls()]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
