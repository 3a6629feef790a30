"""Distributions of two columns, and how strongly they are associated."""

from itertools import combinations

import numpy as np
from jaxtyping import Float64, Int

from recipes.metrics.tables.columns import Codes, Columns


def merged(codes: Codes, columns: Columns, groups: int) -> tuple[Codes, Columns]:
    """Return codes of at most so many groups of neighbours in each ordered column.

    Other columns, and missing values, are unchanged. Fewer cells have less noise from finite
    numbers of rows.

    Raises:
        ValueError: no group; codes that ``columns`` does not have.
    """
    if groups < 1:
        raise ValueError(f"groups is {groups}, must be at least 1")
    columns.check("codes", codes)
    values = np.asarray(columns.values)
    fewer = np.where(columns.ordered, np.minimum(values, groups), values)
    # a missing value follows the values, and so its group follows theirs
    merged_codes = np.where(codes < values, codes * fewer // np.maximum(values, 1), fewer)
    sizes = (fewer + np.asarray(columns.missing)).tolist()
    return merged_codes, Columns(columns.names, sizes, columns.ordered, columns.missing)


def pair_variation(rows: Codes, reference: Codes, columns: Columns) -> Float64[np.ndarray, "L L"]:
    """Compute the total variation between the joint distributions of any two columns, 0 to 1.

    The diagonal is 0.

    Raises:
        ValueError: codes that ``columns`` does not have.
    """
    columns.check("rows", rows)
    columns.check("reference", reference)
    distances = np.zeros((len(columns.sizes), len(columns.sizes)))
    for i, j in combinations(range(len(columns.sizes)), 2):
        one, other = (_joint(codes, i, j, columns) / len(codes) for codes in (rows, reference))
        distances[i, j] = distances[j, i] = np.abs(one - other).sum() / 2
    return distances


def cramers_v(rows: Codes, columns: Columns) -> Float64[np.ndarray, "L L"]:
    """Compute Cramér's V of any two columns: 0 if independent, 1 if one determines the other.

    The diagonal is 1. A column with a single value in ``rows`` has V = 0 with the others.

    Raises:
        ValueError: codes that ``columns`` does not have.
    """
    from scipy.stats.contingency import association  # takes half a second

    columns.check("rows", rows)
    strengths = np.eye(len(columns.sizes))
    for i, j in combinations(range(len(columns.sizes)), 2):
        counts = _joint(rows, i, j, columns)
        counts = counts[counts.any(1)][:, counts.any(0)]
        if min(counts.shape) > 1:
            strengths[i, j] = strengths[j, i] = association(counts, method="cramer")
    return strengths


def _joint(codes: Codes, i: int, j: int, columns: Columns) -> Int[np.ndarray, "m n"]:
    """Return the number of rows with each pair of codes."""
    shape = (columns.sizes[i], columns.sizes[j])
    cells = np.ravel_multi_index((codes[:, i], codes[:, j]), shape)
    return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
