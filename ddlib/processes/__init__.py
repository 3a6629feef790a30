"""Forward processes: masked, uniform, hierarchical and other noise of tokens."""

import ddlib.processes.product_levels  # noqa: F401 # a subclass that ``Product`` returns
from ddlib.processes.base import ForwardProcess, identity
from ddlib.processes.broadcasting import (
    elapsed,
    interior,
    scalar,
    span,
    unsqueeze_times,
)
from ddlib.processes.gidd import GIDD
from ddlib.processes.hierarchical import Hierarchical
from ddlib.processes.level_process import LevelProcess
from ddlib.processes.masked import Masked
from ddlib.processes.matrix_exponential import MatrixExponential
from ddlib.processes.noisy import Noisy
from ddlib.processes.per_word import PerWord
from ddlib.processes.product import Product
from ddlib.processes.rate_matrix import RateMatrix
from ddlib.processes.uniform import Uniform

__all__ = [
    "GIDD",
    "ForwardProcess",
    "Hierarchical",
    "LevelProcess",
    "Masked",
    "MatrixExponential",
    "Noisy",
    "PerWord",
    "Product",
    "RateMatrix",
    "Uniform",
    "elapsed",
    "identity",
    "interior",
    "scalar",
    "span",
    "unsqueeze_times",
]
