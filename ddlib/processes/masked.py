"""Masked diffusion."""

from collections.abc import Sequence
from typing import Self

from ddlib.hierarchies import Flat
from ddlib.processes.hierarchical import Hierarchical
from ddlib.schedules import Geometric, Linear, Schedule


class Masked(Hierarchical):
    r"""Masked diffusion, each token jumps to the mask and stays: MDLM (Sahoo et al., 2024), MD4
    (Shi et al., 2024).

    :math:`q_t(\cdot|x) = \alpha_t x + (1 - \alpha_t) m`. The hierarchy has no clusters.

    Args:
        vocab_size: number of tokens V; the mask is state V.
        schedule: the schedule alpha.
        masks: number of masks K: a token becomes one of the states V, ..., V + K - 1, drawn
            uniformly. The bound is that of one mask, and the input of the network is noisier (arXiv
            2505.19656).
    """

    training_weighting = "clip:2"

    def __init__(self, vocab_size: int, schedule: Schedule, masks: int = 1) -> None:
        super().__init__(Flat(vocab_size, masks), schedule)
        self.declare(masks=masks)

    def widened(self, vocab_size: int) -> "Masked":
        size = max(vocab_size, self.vocab_size)
        return Masked(size, self.schedules[0], self.levels[-1]) if type(self) is Masked else self

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(5, Linear()), cls(4, Geometric()), cls(4, Linear(), masks=3)]
