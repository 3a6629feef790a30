"""Pace of pictures: the colours of a checkerboard, one after the other."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.paces.sequential import OfPicture
from ddlib.utils.validation import check_count, require


class Checkerboard(OfPicture):
    """Pixels of one colour of a checkerboard, then those of the other.

    With more colours, of finer boards.

    Two colours are those of the checkerboard context model (He et al., 2021, arXiv 2103.15306): no
    pixel moves together with its neighbour. Each colour of a board is itself a coarser grid, with a
    checkerboard, so 4, 8, 16, ... colours follow. Pixels of the same of n colours are at least the
    square root of n apart. The order of single pixels is the ordered dither of Bayer (1973): all
    its beginnings are spread evenly over the picture.

    Args:
        shape: rows and columns of a picture, (H, W), whose pixels are in raster order.
        colors: number of colours, a power of 2, each with equally many pixels. 2 requires an even
            number of rows or columns, 4 both even, 8 also one of them a multiple of 4, 16 both
            multiples of 4, and so on.

    Raises:
        TypeError, ValueError: not two numbers, a number not int or below 1, colors not a power of 2
            or of unequally many pixels; when times are computed, sequences of another length than H
            W.

    Example:
        >>> Checkerboard((2, 4)).turns(torch.zeros(1, 8).double()).view(2, 4).int().tolist()
        [[0, 4, 1, 5], [6, 2, 7, 3]]
        >>> (Checkerboard((4, 4), 4).ranks.view(4, 4) // 4).tolist()
        [[0, 2, 0, 2], [3, 1, 3, 1], [0, 2, 0, 2], [3, 1, 3, 1]]
    """

    def __init__(self, shape: Sequence[int], colors: int = 2) -> None:
        self.colors = check_count("colors", colors)
        require(self.colors.bit_count() == 1, f"colors is {self.colors}, must be a power of 2")
        super().__init__(shape, 1)
        halvings = self.colors.bit_length() - 1
        side = 2 ** (halvings // 2)
        odd = halvings % 2
        rows, columns = self.shape
        even = rows % side == columns % side == 0 and (
            not odd or (rows // side) * (columns // side) % 2 == 0
        )
        require(
            even,
            f"shape is {self.shape}, must have sides that are multiples of {side}"
            f"{f', one of them of {2 * side}' if odd else ''}: {self.colors} colors have equally "
            "many pixels",
        )
        self.size = rows * columns // self.colors

    def order(self) -> Int64[Tensor, "L"]:
        rows, columns = self.shape
        place = torch.arange(rows * columns)
        row = place // columns
        column = place % columns
        key = torch.zeros_like(place)
        for bit in range(max(rows - 1, columns - 1).bit_length()):  # the finest board decides first
            down = row >> bit & 1
            right = column >> bit & 1
            key = 4 * key + 2 * (down ^ right) + down
        return key.argsort()

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls((1, 2)), cls((2, 2), 4), cls((2, 6))]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, colors={self.colors})"
