"""Models that are there: what a run published, read back."""

from recipes.saved.base import Precision, Saved, meaning
from recipes.saved.calling import called
from recipes.saved.names import CLUSTERS, COUNTS, RECIPE, SPEEDS, TOKENIZER, WEIGHTS
from recipes.saved.opening import open_saved

__all__ = [
    "CLUSTERS",
    "COUNTS",
    "RECIPE",
    "SPEEDS",
    "TOKENIZER",
    "WEIGHTS",
    "Precision",
    "Saved",
    "called",
    "meaning",
    "open_saved",
]
