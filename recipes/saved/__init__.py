"""Models that are there: what a run published, and what others did."""

from recipes.saved.base import Precision, Saved, meaning
from recipes.saved.calling import called
from recipes.saved.names import CLUSTERS, COUNTS, RECIPE, SPEEDS, TOKENIZER, WEIGHTS
from recipes.saved.opening import one_of, open_saved

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
    "one_of",
    "open_saved",
]
