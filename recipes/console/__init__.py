"""What commands show."""

from recipes.console.bar import TrainingBar, training_progress
from recipes.console.drafts import Drafts
from recipes.console.screen import make_console, on_its_way, plain_errors, render, sign

__all__ = ["Drafts", "TrainingBar", "make_console", "on_its_way", "plain_errors", "render", "sign", "training_progress"]
