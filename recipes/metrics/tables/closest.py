"""Distance of rows to the closest record of the training data."""

import numpy as np
from jaxtyping import Float, Float64

from recipes.metrics.tables.columns import Codes, Columns


def closest(rows: Codes, training: Codes, columns: Columns) -> Float64[np.ndarray, " N"]:
    r"""Compute the Gower distance of each row to its closest row of training, 0 to 1.

    .. math:: \min_{y} \frac{1}{L} \sum_l d_l(x_l, y_l)

    d is 0 or 1 for equal or other categories, and the share of the codes between two ordered
    values; a missing value is a category. Distance 0 is a copy. Compare the distances of samples
    with those of held-out rows: smaller ones suggest copies, larger ones rows that are improbable
    under the distribution of the data.

    Raises:
        ValueError: codes that ``columns`` does not have.
    """
    from sklearn.neighbors import NearestNeighbors  # takes a second

    columns.check("rows", rows)
    columns.check("training", training)
    neighbours = NearestNeighbors(n_neighbors=1, metric="manhattan")
    neighbours.fit(_coordinates(training, columns))
    distances, _ = neighbours.kneighbors(_coordinates(rows, columns))
    return distances[:, 0].astype(np.float64) / len(columns.sizes)


def _coordinates(codes: Codes, columns: Columns) -> Float[np.ndarray, "N D"]:
    """Return points whose L1 distance is the sum of the distances of the columns."""
    parts = []
    for i, (size, ordered) in enumerate(zip(columns.values, columns.ordered, strict=True)):
        column = codes[:, i]
        if not ordered:
            parts.append(np.eye(columns.sizes[i])[column] / 2)
            continue
        share = column / max(size - 1, 1)
        # |u - v| between values, 1 between a missing one and any
        point = np.stack([share, 1 - share, np.zeros(len(column))], 1) / 2
        parts.append(np.where((column < size)[:, None], point, [0.0, 0.0, 0.5]))
    return np.concatenate(parts, 1)
