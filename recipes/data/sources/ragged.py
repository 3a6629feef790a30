"""Arrays of different lengths in one buffer."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int


class Ragged(Sequence[np.ndarray]):
    """Sequence of integer arrays that are slices of one array: a million short ones take no more memory than it.

    Args:
        values: all arrays, one behind the other.
        lengths: length of each.

    Raises:
        ValueError: the lengths do not add up to the number of values.
    """

    def __init__(self, values: Int[np.ndarray, " M"], lengths: Int[np.ndarray, " N"]) -> None:
        self.values, self.offsets = values, np.concatenate([[0], np.cumsum(lengths)])
        if self.offsets[-1] != len(values):
            raise ValueError(f"lengths add up to {self.offsets[-1]}, must add up to the {len(values)} values")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index}: there are {len(self)}")
        index %= len(self)
        return self.values[self.offsets[index] : self.offsets[index + 1]]
