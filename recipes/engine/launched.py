"""A training step whose numbers the host has not read yet.

The device's queue of work never runs empty: the numbers of a step are read once the next step is in
the queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from recipes.engine.objectives.noising import NoisyBatch


class HostCopy:
    """Copy of numbers of a device to the host, which is waited for when it is read."""

    def __init__(self, values: Float64[Tensor, " n"]) -> None:
        self._ready: torch.cuda.Event | None = None
        if values.is_cuda:
            copy = torch.empty_like(values, device="cpu", pin_memory=True)
            values = copy.copy_(values, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record()
        self._values = values

    def read(self) -> list[float]:
        """Wait for the copy and return the numbers."""
        if self._ready is not None:
            self._ready.synchronize()
        numbers: list[float] = self._values.tolist()
        return numbers


@dataclass(frozen=True)
class Launched:
    """A step that was launched: its numbers, and what explains a loss that is not finite."""

    step: int
    """Number of the step, from 0."""
    values: HostCopy
    """Norm, tokens, whether the loss or gradient of this process is not finite; then sums over
    all processes: loss, processes whose loss is not finite, processes with a signal to stop, and
    the rows of ``level_sums``.
    """
    rate: float
    """Learning rate."""
    noisy: Sequence[NoisyBatch]
    losses: Sequence[Float[Tensor, "B L"]]
    """Loss of each token of each micro-batch."""
    numbers: Mapping[str, float]
    """Further numbers of the training objective by name."""
