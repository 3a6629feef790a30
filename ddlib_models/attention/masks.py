"""Who sees whom in attention: rules from indices of queries and keys to booleans, which back ends make masks of."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

Rule = Callable[[Tensor, Tensor], Tensor]
"""Who sees whom: indices of queries and of keys, which broadcast, to booleans."""


@dataclass(frozen=True)
class ByBlocks:
    """A token sees its own block of positions, and the clean blocks before it (Arriola et al. 2025, BD3-LM).

        code(k) = code(q),   or   code(k) < code(q) and k clean;   code = 2 block + 1 if clean, 2 block if noisy

    A row is noisy tokens, then clean ones; both count their positions from 0. Without noisy ones it is one text in
    which each block sees itself and all before it.

    Args:
        size: positions of a block.
        noisy: how many noisy tokens stand in front.
        first: the position of the first query, where keys of earlier positions were kept.
    """

    size: int
    noisy: int = 0
    first: int = 0

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        asks, asked = self._code(query + self.first), self._code(key)
        return (asked == asks) | ((asked % 2 == 1) & (asked < asks))

    def _code(self, index: Tensor) -> Tensor:
        clean = (index - self.noisy) // self.size * 2 + 1
        return torch.where(index < self.noisy, index // self.size * 2, clean)


def within(owner: Int[Tensor, " L"], position: Int[Tensor, " L"] | None = None, rule: Rule | None = None) -> Rule:
    """The rule that keeps the sequences of a pack apart; ``rule``, if given, is asked about positions within one."""

    def same(query, key):  # not annotated: the indices may be those of a compiler
        together = owner[query] == owner[key]
        return together if rule is None or position is None else together & rule(position[query], position[key])

    return same
