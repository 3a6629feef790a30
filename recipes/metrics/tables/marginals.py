"""Distributions of single columns."""

import numpy as np
from jaxtyping import Float64, Int

from recipes.metrics.tables.columns import Codes, Columns


def frequencies(column: Int[np.ndarray, " N"], size: int) -> Float64[np.ndarray, " size"]:
    """Return the share of each code."""
    return np.bincount(column, minlength=size) / len(column)


def column_variation(rows: Codes, reference: Codes, columns: Columns) -> Float64[np.ndarray, " L"]:
    r"""Compute the total variation between the distributions of each column, 0 to 1.

    .. math:: \tfrac{1}{2} \sum_v |p(v) - q(v)|

    Raises:
        ValueError: codes that ``columns`` does not have.
    """
    columns.check("rows", rows)
    columns.check("reference", reference)
    distances = [
        np.abs(frequencies(rows[:, i], size) - frequencies(reference[:, i], size)).sum() / 2
        for i, size in enumerate(columns.sizes)
    ]
    return np.array(distances)
