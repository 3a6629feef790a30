"""Quantisation of grey values."""

import numpy as np
from jaxtyping import Int, UInt8

WHITE = 255


def check_levels(levels: int) -> None:
    """Check a number of grey values.

    Raises:
        ValueError: not between 2 and 256.
    """
    if not 2 <= levels <= WHITE + 1:
        raise ValueError(f"levels={levels}: must be between 2 (black and white) and 256")


def quantise(grey: UInt8[np.ndarray, "*n"], levels: int) -> Int[np.ndarray, "*n"]:
    """Return the index of the interval that each value lies in, of ``levels`` equal intervals of
    [0, 256).
    """
    return (grey.astype(np.int64) * levels // (WHITE + 1)).astype(np.int64)


def values_of(levels: int) -> tuple[int, ...]:
    """Return the grey value at which each interval is displayed: 0 for the first, 255 for the last,
    even steps.
    """
    return tuple(round(index * WHITE / (levels - 1)) for index in range(levels))
