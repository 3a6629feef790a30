"""Hierarchy of masked diffusion: one edge from every token to the mask."""

from collections.abc import Sequence
from typing import Self

from ddlib.hierarchies.base import Hierarchy
from ddlib.hierarchies.maps import to_masks
from ddlib.utils.validation import check_count


class Flat(Hierarchy):
    """Hierarchy of two levels, tokens and the mask: masked diffusion.

    Args:
        vocab_size: number of tokens V, at least 1.
        masks: number of masks K, at least 1, of which one is drawn uniformly (arXiv 2505.19656).
    """

    def __init__(self, vocab_size: int, masks: int = 1) -> None:
        super().__init__([to_masks(check_count("vocab_size", vocab_size), masks)])
        self.declare(masks=masks)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(1), cls(5), cls(4, masks=3)]
