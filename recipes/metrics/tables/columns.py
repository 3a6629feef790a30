"""Columns of a table whose values are codes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Int

Codes: TypeAlias = Int[np.ndarray, "N L"]


@dataclass(frozen=True)
class Columns:
    """Names, numbers of codes, and whether codes are in order, of the columns of a table.

    Raises:
        ValueError: no column, sequences of different lengths, or a column without codes.
    """

    names: Sequence[str]
    sizes: Sequence[int]
    ordered: Sequence[bool]
    missing: Sequence[bool] = ()
    """Whether the last code of a column is that of missing values, which have no order; empty:
    none is."""

    def __post_init__(self) -> None:
        if not self.missing:
            object.__setattr__(self, "missing", (False,) * len(self.names))
        lengths = (len(self.names), len(self.sizes), len(self.ordered), len(self.missing))
        if not self.names or len(set(lengths)) > 1:
            raise ValueError(
                f"names, sizes, ordered and missing have the lengths {lengths}: must be equal, at "
                "least 1"
            )
        for name, size in zip(self.names, self.sizes, strict=True):
            if size < 1:
                raise ValueError(f"the size of column {name!r} is {size}, must be at least 1")

    @property
    def values(self) -> Sequence[int]:
        """Number of codes of each column without that of missing values."""
        return [size - missing for size, missing in zip(self.sizes, self.missing, strict=True)]

    def check(self, name: str, codes: Codes) -> None:
        """Raise ValueError unless the argument ``name`` has rows, and codes within the sizes."""
        if codes.ndim != 2 or codes.shape[1] != len(self.names) or not len(codes):
            raise ValueError(
                f"{name} has the shape {codes.shape}, must be (N, {len(self.names)}) with at least "
                "one row"
            )
        wrong = (codes < 0) | (codes >= np.asarray(self.sizes))
        if wrong.any():
            row, column = (int(index[0]) for index in wrong.nonzero())
            raise ValueError(
                f"{name}[{row}, {column}] = {codes[row, column]} in column "
                f"{self.names[column]!r}, must be in [0, {self.sizes[column]})"
            )
