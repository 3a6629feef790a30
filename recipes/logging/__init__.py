"""Output of a run during training, and its records for plots: ``python -m recipes.plot RUN...``."""

from recipes.logging.metrics import METRICS, TIMING, Record, read_metrics
from recipes.logging.watch import Step, Watch

__all__ = ["METRICS", "TIMING", "Record", "Step", "Watch", "read_metrics"]
