"""Recipes: complete experiments, each a script that reads from top to bottom."""

import os
import random
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipes.generation.pipeline import pipeline

if "torch" not in sys.modules:
    # OpenMP's threads spin while they wait: beside another process on the same cores a run takes
    # many times as long. They read this once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# a module of rich, which the commands print with, draws from Python's generator when it is imported
_before = random.getstate()
import rich.style  # noqa: E402, F401

random.setstate(_before)

__all__ = ["pipeline"]


def __getattr__(name: str) -> Any:
    """Import the pipeline on first access: it takes seconds, which the help of a command does not.

    Raises:
        AttributeError: another name.
    """
    if name not in __all__:
        raise AttributeError(f"module 'recipes' has no attribute {name!r}")
    from recipes.generation.pipeline import pipeline

    return pipeline
