"""Fused output layer and loss: only the logits that the loss depends on are computed, in chunks."""

from ddlib.kernels.api import Hidden

__all__ = ["Hidden"]
