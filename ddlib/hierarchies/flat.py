"""Trivial hierarchy of masked diffusion: every token jumps straight to the mask."""

from collections.abc import Sequence
from typing import Self

import torch

from ddlib.hierarchies.base import Hierarchy
from ddlib.hierarchies.maps import Map
from ddlib.utils.validation import check_count


class Flat(Hierarchy):
    """Hierarchy of two levels, tokens and the mask: masked diffusion.

    Args:
        vocab_size: number of tokens V, at least 1.
    """

    def __init__(self, vocab_size: int) -> None:
        check_count("vocab_size", vocab_size)
        super().__init__([Map(torch.zeros(vocab_size, dtype=torch.int64), 1)])

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(1), cls(5)]
