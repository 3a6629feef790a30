"""Masked diffusion."""

from collections.abc import Sequence
from typing import Self

from ddlib.hierarchies import Flat
from ddlib.processes.hierarchical import Hierarchical
from ddlib.schedules import Geometric, Linear, Schedule


class Masked(Hierarchical):
    r"""Masked diffusion, each token jumps to the mask and stays: MDLM (Sahoo et al., 2024), MD4 (Shi et al., 2024).

    :math:`q_t(\cdot|x) = \alpha_t x + (1 - \alpha_t) m`. The hierarchy has no clusters.

    Args:
        vocab_size: number of tokens V; the mask is state V.
        schedule: the schedule alpha.
    """

    def __init__(self, vocab_size: int, schedule: Schedule) -> None:
        super().__init__(Flat(vocab_size), schedule)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(5, Linear()), cls(4, Geometric())]
