"""What a step of training tells."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """After every step, the same on every process."""

    loss: float
    """Nats per token, over all processes."""
    norm: float
    """Of the gradient, before it was clipped."""
    rate: float
    levels: Float[Tensor, "n 2"]
    """Sum of the loss and number of tokens at every level of the noise."""
    names: Sequence[str]
    """Of these levels."""
    stop: bool
    """Whether any process was asked to stop."""
