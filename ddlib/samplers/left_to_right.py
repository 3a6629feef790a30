"""Positions come down one after another, as an autoregressive model writes."""

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.samplers.ordered import OrderedSampler


class LeftToRight(OrderedSampler):
    r"""The leftmost position that is no word goes down an edge, until it is one.

    With as many steps as edges a text is drawn by the chain rule, :math:`p(x) = \prod_l p(x_l | x_{<l}, masks)`, a word
    of a hierarchy cluster by cluster. With fewer, the edges that a row has left are split evenly over the steps left,
    and as many of the leftmost positions go down one each. The network is asked about the positions that go alone.

    Args:
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.

    Raises:
        TypeError: when sampling, a process without levels.
    """

    def select(self, score: Float64[Tensor, "B L"], level: Int64[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        return torch.zeros_like(level, dtype=torch.bool)
