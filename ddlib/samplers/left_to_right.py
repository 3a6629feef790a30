"""Sampling from left to right, in the order of autoregressive models."""

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.samplers.ordered import OrderedSampler, defined_below


class LeftToRight(OrderedSampler):
    r"""Descent of the leftmost position that is not a token yet, one edge at a time.

    With as many steps as edges a sequence is drawn by the chain rule, :math:`p(x) = \prod_l p(x_l |
    x_{<l}, masks)`, in a hierarchy cluster by cluster. With fewer steps the remaining edges of a
    row are split evenly over the remaining steps, and as many of the leftmost positions descend one
    edge each. The network is evaluated at these positions only.

    Args:
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.

    Raises:
        TypeError: when sampling, a process without levels.
    """

    @property
    def uses_predictions(self) -> bool:
        """False, unless a subclass has ``confidence`` in its body."""
        return defined_below(self, LeftToRight, "confidence")

    def select(
        self, score: Float64[Tensor, "B L"], level: Int64[Tensor, "B L"]
    ) -> Bool[Tensor, "B L"]:
        return torch.zeros_like(level, dtype=torch.bool)
