"""Euler steps."""

from jaxtyping import Float64
from torch import Tensor

from ddlib.samplers.leap import Leap


class Euler(Leap):
    r"""A position jumps with probability :math:`\min(1, R h)`, where R is its reverse rate and h the step's length.

    As SEDD samples (Lou et al., 2024). The destination is drawn in proportion to the rates; the first and the last step
    are ``Ancestral``'s, as rates may grow without bound towards the ends of time. A baseline: ``Ancestral`` costs as
    much and is exact for one word. For masks on a linear clock the two have one law, as :math:`R h = h / t`.

    Args:
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.
    """

    def chance(self, hits: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        return hits.clamp_max(1.0)
