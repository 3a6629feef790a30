"""What commands show."""

from recipes.console.bar import TrainingBar, training_progress
from recipes.console.screen import make_console, on_its_way, plain_errors, render

__all__ = ["TrainingBar", "make_console", "on_its_way", "plain_errors", "render", "training_progress"]
