"""Loading of trained models, published runs and third-party denoisers, and publication of one's
own.
"""

from recipes.model_io.base import FoundModel, LoadedModel, ModelFiles, Precision
from recipes.model_io.calling import as_function, with_padding
from recipes.model_io.names import CLUSTERS, COUNTS, RECIPE, SYMBOLS, TOKENIZER, WEIGHTS
from recipes.model_io.opening import LoadOptions, find_saved, one_of, open_saved
from recipes.model_io.publishing import publish
from recipes.model_io.reading import check_labels, measured_length, open_held_out
from recipes.model_io.samplers import (
    blocks_of,
    check_order,
    check_sampler,
    make_order,
    make_sampler,
)

__all__ = [
    "CLUSTERS",
    "COUNTS",
    "RECIPE",
    "SYMBOLS",
    "TOKENIZER",
    "WEIGHTS",
    "FoundModel",
    "LoadOptions",
    "LoadedModel",
    "ModelFiles",
    "Precision",
    "as_function",
    "blocks_of",
    "check_labels",
    "check_order",
    "check_sampler",
    "find_saved",
    "make_order",
    "make_sampler",
    "measured_length",
    "one_of",
    "open_held_out",
    "open_saved",
    "publish",
    "with_padding",
]
