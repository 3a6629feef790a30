"""Measures of synthetic tables against held-out rows; a table is (N, L) codes, one column each."""

from recipes.metrics.tables.associations import cramers_v, merged, pair_variation
from recipes.metrics.tables.closest import closest
from recipes.metrics.tables.columns import Codes, Columns
from recipes.metrics.tables.halves import floor, halved
from recipes.metrics.tables.marginals import column_variation, frequencies
from recipes.metrics.tables.statistics import measure
from recipes.metrics.tables.transfer import Transfer, transfer

__all__ = [
    "Codes",
    "Columns",
    "Transfer",
    "closest",
    "column_variation",
    "cramers_v",
    "floor",
    "frequencies",
    "halved",
    "measure",
    "merged",
    "pair_variation",
    "transfer",
]
