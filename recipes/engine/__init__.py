"""Training on one process or many, with checkpoints that survive a kill at any moment."""

from recipes.engine.loop import train
from recipes.engine.memory import estimate
from recipes.engine.run import NonFiniteError

__all__ = ["NonFiniteError", "estimate", "train"]
