"""Bisection on [0, 1]."""

from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor


def bisect(later: Callable[[Tensor], Tensor], like: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
    """Return the numbers in [0, 1] up to which ``later`` is True, elementwise, to 2^-60.

    Args:
        later: takes numbers (..., ) in [0, 1], returns where the solution is larger.
        like: tensor of the shape of the result.
    """
    low = torch.zeros_like(like)
    high = torch.ones_like(like)
    for _ in range(60):
        middle = (low + high) / 2
        above = later(middle)
        low = torch.where(above, middle, low)
        high = torch.where(above, high, middle)
    return (low + high) / 2
