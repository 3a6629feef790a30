"""Fused output layer and loss: only the logits that the loss depends on are computed, in chunks."""

from ddlib.kernels.api import linear_nelbo, linear_training_loss

__all__ = ["linear_nelbo", "linear_training_loss"]
