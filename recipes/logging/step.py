"""Results of a training step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """Results of a step, the same on every process."""

    loss: float
    """Nats per token, over all processes."""
    norm: float
    """Norm of the gradient before clipping."""
    rate: float
    levels: Float[Tensor, "n 2"]
    """Sum of the loss and number of tokens at every level of the noise."""
    names: Sequence[str]
    """Names of these levels."""
    stop: bool
    """Whether any process received a signal to stop."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the training objective by name."""
