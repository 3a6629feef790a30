"""Pace of pictures: one rectangle of pixels after the other."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.paces.sequential import InTurn, check_pixels, check_sides
from ddlib.utils.validation import require


class Patches(InTurn):
    """Rectangles of pixels in raster order, for pictures whose pixels are in raster order.

    Earlier patches are data, later patches are noise. Patches as wide as the picture are the blocks
    of ``Blocks``, and patches of one pixel those of ``LeftToRight``. Others are not contiguous in
    the sequence, so ``block`` is None: the denoiser takes the full sequence, with times (B, L).

    Args:
        shape: rows and columns of a picture, (H, W).
        patch: rows and columns of a patch, (h, w), which divide those of the picture.

    Raises:
        TypeError, ValueError: not two numbers each, a number not int or below 1, or a patch that
            does not divide the picture; when times are computed, sequences of another length than H
            W.

    Example:
        >>> Patches((2, 4), (2, 2)).turns(torch.zeros(1, 8).double()).view(2, 4).int().tolist()
        [[0, 1, 4, 5], [2, 3, 6, 7]]
    """

    def __init__(self, shape: Sequence[int], patch: Sequence[int]) -> None:
        self.shape, self.patch = check_sides("shape", shape), check_sides("patch", patch)
        for length, side in zip(self.shape, self.patch, strict=True):
            require(
                length % side == 0,
                f"patch is {self.patch}, must divide the rows and columns of shape {self.shape}",
            )
        super().__init__(self.patch[0] * self.patch[1])

    def parts(self, length: int) -> int:
        check_pixels(self.shape, length)
        return super().parts(length)

    def turns(self, chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        (height, width), (_, columns) = self.patch, self.shape
        place = torch.arange(chance.shape[1], device=chance.device)
        row = place // columns
        column = place % columns
        patch = (row // height) * (columns // width) + column // width
        turn = patch * self.size + (row % height) * width + column % width
        return turn.to(chance.dtype).expand_as(chance)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls((1, 2), (1, 1)), cls((2, 2), (2, 1)), cls((2, 6), (2, 2))]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, patch={self.patch})"
