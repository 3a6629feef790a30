"""Tau-leaping."""

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.samplers.leap import Leap


class TauLeaping(Leap):
    r"""Each destination is hit Poisson-many times in a step; a position hit exactly once, of all, jumps there.

    The chance is :math:`R h\, e^{-R h}` with R the reverse rate and h the step's length: more than one hit means
    nothing where states have no order, so such a step is rejected at that position (tauLDR, Campbell et al., 2022). The
    first and the last step are ``Ancestral``'s, as rates may grow without bound towards the ends of time. A baseline,
    as ``Euler``.

    Args:
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.
    """

    def chance(self, hits: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        return hits * torch.exp(-hits)
