"""Fused output layer and loss: only the logits that the loss depends on are computed, in chunks."""

from ddlib.kernels.api import Hidden
from ddlib.kernels.planned import PlannedLoss

__all__ = ["Hidden", "PlannedLoss"]
