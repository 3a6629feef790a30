"""The output layer and the loss as one: only the logits that the mathematics asks for, a chunk at a time."""

from ddlib.kernels.api import linear_nelbo, linear_training_loss

__all__ = ["linear_nelbo", "linear_training_loss"]
