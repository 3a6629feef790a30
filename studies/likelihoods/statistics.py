"""Statistics of repeated estimates."""

import math

from torch import Tensor


def covered(nats: Tensor, truth: float) -> float:
    """Return the share of rows whose mean ± 2 standard errors contains the truth."""
    error = nats.std(1) / math.sqrt(nats.shape[1])
    return float(((nats.mean(1) - truth).abs() <= 2 * error).double().mean())
