"""Models that are there: what a run published, and what others did."""

from recipes.saved.base import Precision, Saved
from recipes.saved.calling import called, padded
from recipes.saved.names import CLUSTERS, COUNTS, RECIPE, SPEEDS, TOKENIZER, WEIGHTS
from recipes.saved.opening import one_of, open_saved
from recipes.saved.options import Reading
from recipes.saved.reading import held_out, measured_length

__all__ = [
    "CLUSTERS",
    "COUNTS",
    "RECIPE",
    "SPEEDS",
    "TOKENIZER",
    "WEIGHTS",
    "Precision",
    "Reading",
    "Saved",
    "called",
    "held_out",
    "measured_length",
    "one_of",
    "open_saved",
    "padded",
]
