"""Pace of pictures: pixels in the order of a two-dimensional Halton sequence."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.paces.sequential import OfPicture
from ddlib.utils.validation import require


class Halton(OfPicture):
    """Pixels in the order in which the points of a Halton sequence first meet them.

    Base 2 for rows, 3 for columns.

    Halton scheduler of MaskGIT (Besnier et al., 2025, arXiv 2503.17076). The sequence has low
    discrepancy: its points are spread evenly over the picture, so pixels that move together are far
    apart until few are left. The order is fixed, and every pixel occurs once.

    Args:
        shape: rows and columns of a picture, (H, W), whose pixels are in raster order.
        size: number of pixels that move at once, which divides H W.

    Raises:
        TypeError, ValueError: not two numbers, a number not int or below 1, a size that does not
            divide the pixels; when times are computed, sequences of another length than H W.

    Example:
        >>> Halton((4, 4)).turns(torch.zeros(1, 16).double()).view(4, 4).int().tolist()
        [[10, 3, 13, 7], [5, 9, 1, 11], [8, 0, 15, 4], [2, 12, 6, 14]]
    """

    def __init__(self, shape: Sequence[int], size: int = 1) -> None:
        super().__init__(shape, size)
        pixels = self.shape[0] * self.shape[1]
        require(
            pixels % self.size == 0,
            f"size is {self.size}, must divide the pixels of shape {self.shape}, {pixels}",
        )

    def order(self) -> Int64[Tensor, "L"]:
        rows, columns = self.shape
        count = 64
        # ends: every pixel contains a rectangle that one of so many successive points meets
        while True:
            numbers = torch.arange(1, count + 1)
            first = torch.full((rows * columns,), count)
            pixel = _radical_inverse(numbers, 2, rows) * columns + _radical_inverse(
                numbers, 3, columns
            )
            first = first.scatter_reduce(0, pixel, numbers - 1, "amin")
            if int(first.max()) < count:
                return first.argsort()
            count *= 2

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls((1, 2)), cls((2, 2), 2), cls((3, 4), 3)]


def _radical_inverse(numbers: Int64[Tensor, "n"], base: int, size: int) -> Int64[Tensor, "n"]:
    """Return floor(size r), with r the number whose digits after the point are those of ``numbers``
    in reverse.
    """
    reverse = torch.zeros_like(numbers)
    power = 1
    while power <= int(numbers[-1]):
        reverse = reverse * base + numbers // power % base
        power = power * base
    return reverse * size // power
