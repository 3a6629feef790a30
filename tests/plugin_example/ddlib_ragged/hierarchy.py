"""Hierarchies with bands of tokens of similar frequency, and with the mask as the only level above
the tokens.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from ddlib.hierarchies import Hierarchy, Map, parent_map
from ddlib.utils.validation import check_count, require


class Bands(Hierarchy):
    """Hierarchy of tokens, bands of equal size and the mask; band 0 has the most frequent tokens.

    Args:
        counts: number of occurrences of each token, (V,).
        bands: number of bands, below the number of tokens.
        xi: probability that a token jumps to its band and not to another one.
        speed: speeds of the jumps to the bands and to the mask; 1 and 1 by default.

    Raises:
        ValueError: no counts, too many bands, or an xi or speed out of range.
    """

    def __init__(
        self,
        counts: Sequence[float] | Tensor,
        bands: int,
        xi: float = 1.0,
        speed: Sequence[float] | None = None,
    ) -> None:
        frequency = torch.as_tensor(counts, dtype=torch.float64)
        require(
            frequency.ndim == 1 and len(frequency) > 0,
            f"counts has shape {tuple(frequency.shape)}, must be (V,)",
        )
        check_count("bands", bands)
        require(
            bands < len(frequency),
            f"bands is {bands}, must be below the number of words, {len(frequency)}",
        )
        rank = frequency.argsort(descending=True, stable=True).argsort()
        to_band = parent_map(rank * bands // len(rank), xi, name="bands")
        super().__init__([to_band, _to_mask(bands)], speed)
        self.declare(counts=counts, bands=bands, xi=xi, speed=speed)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        counts = [90, 7, 40, 2, 11, 30]
        return [cls(counts, 3), cls(counts, 2, xi=0.8, speed=[2.0, 1.0])]


class Straight(Hierarchy):
    """Hierarchy in which every token jumps directly to the mask.

    Args:
        vocab_size: number of tokens V.
        speed: speed of the jumps.
    """

    def __init__(self, vocab_size: int, speed: float = 1.0) -> None:
        super().__init__([_to_mask(vocab_size)], [speed])
        self.declare(speed=speed)


def _to_mask(size: int) -> Map:
    return Map(torch.zeros(size, dtype=torch.int64), 1)
