"""Marginals and associations as a few numbers."""

import numpy as np

from recipes.metrics.tables.associations import cramers_v, merged, pair_variation
from recipes.metrics.tables.columns import Codes, Columns
from recipes.metrics.tables.marginals import column_variation


def measure(rows: Codes, reference: Codes, columns: Columns, groups: int = 8) -> dict[str, float]:
    """Compute the distances of two tables.

    Returns:
        ``marginals``: total variation, mean over columns; ``worst_marginal``: of the worst column;
        ``pairs``: total variation of two columns, mean over pairs; ``associations``: difference of
        Cramér's V, mean over pairs. Pairs are of ordered columns with at most ``groups`` codes. The
        last two are NaN for one column.

    Raises:
        ValueError: no group; codes that ``columns`` does not have.
    """
    single = column_variation(rows, reference, columns)
    distances = {"marginals": float(single.mean()), "worst_marginal": float(single.max())}
    fewer, coarse = merged(rows, columns, groups)
    reference, _ = merged(reference, columns, groups)
    above = np.triu_indices(len(columns.sizes), 1)
    if not len(above[0]):
        return distances | {"pairs": float("nan"), "associations": float("nan")}
    pairs = pair_variation(fewer, reference, coarse)[above]
    change = np.abs(cramers_v(fewer, coarse) - cramers_v(reference, coarse))[above]
    return distances | {"pairs": float(pairs.mean()), "associations": float(change.mean())}
