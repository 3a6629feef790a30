"""Adapters to other libraries, and the parts that every training loop shares: batches, loss, bound,
saved process.

``ddlib.integrations.transformers``, ``.lightning`` and ``.diffusers`` import the library of that
name; this package requires PyTorch alone.
"""

from ddlib.integrations.batches import DiffusionCollator, Targets
from ddlib.integrations.measures import DiffusionLoss, mean_bound, sequence_bounds
from ddlib.integrations.positions import Positions, PositionSampler
from ddlib.integrations.saved import (
    load_process,
    process_file,
    process_values,
    save_process,
    write_samples,
)

__all__ = [
    "DiffusionCollator",
    "DiffusionLoss",
    "PositionSampler",
    "Positions",
    "Targets",
    "load_process",
    "mean_bound",
    "process_file",
    "process_values",
    "save_process",
    "sequence_bounds",
    "write_samples",
]
