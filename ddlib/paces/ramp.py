"""Pace with a linear offset between positions, as in diffusion forcing and rolling diffusion."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.paces.base import Pace
from ddlib.utils.validation import check_number


class Ramp(Pace):
    r"""Noise that increases along the sequence: the first position is denoised before the last,
    with overlap.

    .. math:: t_l(u) = \mathrm{clip}\left((1 + \mathrm{lag})\, u
        - \mathrm{lag}\, \tfrac{L - 1 - l}{L - 1},\ 0,\
        1\right)

    The path of diffusion forcing (Chen et al., 2024) and of rolling diffusion (Ruhe et al., 2024).

    Args:
        lag: delay of the last position relative to the first, in units of the duration of one
            position, at least 0. With 0 the pace is ``Together``; the larger, the fewer positions
            move at once.

    Raises:
        TypeError, ValueError: lag not a number, negative or above 10^6.

    Example:
        >>> Ramp(1.0).times(torch.tensor([0.5]).double(), torch.zeros(1, 3).double()).tolist()
        [[0.0, 0.5, 1.0]]
    """

    def __init__(self, lag: float = 1.0) -> None:
        self.lag = check_number("lag", lag, 0, 1e6, "in [0, 10^6]")

    def times(
        self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]
    ) -> Float64[Tensor, "B L"]:
        length = chance.shape[1]
        ahead = torch.arange(length - 1, -1, -1, dtype=u.dtype, device=u.device) / max(
            length - 1, 1
        )
        return ((1 + self.lag) * u[:, None] - self.lag * ahead).clamp(0, 1)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(3.0)]
