"""Training on one process or many, with checkpoints that survive being killed."""

from recipes.engine.loop import train
from recipes.engine.run import NonFiniteError

__all__ = ["NonFiniteError", "train"]
