"""Sequences of symbols with what describes them: names of symbols, shape, values, labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class Sequences:
    """Sequences of symbol ids, as a source returns them."""

    ids: Sequence[np.ndarray] | Int[np.ndarray, "N L"]
    """Ids of each sequence, all below V; one array (N, L) if all have the same length."""
    symbols: tuple[str, ...]
    """Names of the V symbols."""
    shape: tuple[int, ...] = ()
    """Shape of one item, e.g. (28, 28) or (28, 28, 3); empty if none."""
    values: tuple[int, ...] = ()
    """Grey or colour value of each symbol of a picture, 0 to 255; empty if none."""
    labels: np.ndarray | None = None
    """Class index of each sequence, (N,) int64."""
    classes: tuple[str, ...] = ()
    """Names of the classes; empty without labels."""
    separator: str = ""
    """String between two symbols where a sequence is printed."""
