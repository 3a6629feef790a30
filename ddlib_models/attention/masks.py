"""Attention masks as predicates over query and key indices, from which back ends build masks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Rule = Callable[[Tensor, Tensor], Tensor]
"""Predicate of a mask: broadcastable indices of queries and of keys to booleans, True where
attention is allowed.
"""


@dataclass(frozen=True)
class ByBlocks:
    """Block-causal mask: a token attends to its own block and to the clean blocks before it
    (BD3-LM).

        code(k) = code(q),  or  code(k) < code(q) and k clean;
        code = 2 block + 1 if clean, 2 block if noisy

    (Arriola et al. 2025.) A row is noisy tokens, then clean ones; both count their positions from
    0. Without noisy tokens it is one sequence in which each block attends to itself and to all
    blocks before it.

    Args:
        size: positions of a block.
        noisy: number of noisy tokens at the front.
        first: the position of the first query, where keys of earlier positions are cached.
    """

    size: int
    noisy: int = 0
    first: int = 0

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        q_code = self._code(query + self.first)
        k_code = self._code(key)
        return (k_code == q_code) | ((k_code % 2 == 1) & (k_code < q_code))

    def _code(self, index: Tensor) -> Tensor:
        clean = (index - self.noisy) // self.size * 2 + 1
        return torch.where(index < self.noisy, index // self.size * 2, clean)


def within(
    owner: Int[Tensor, " L"], position: Int[Tensor, " L"] | None = None, rule: Rule | None = None
) -> Rule:
    """Return the rule that separates packed sequences.

    ``rule``, if given, applies to positions within a sequence.
    """

    def allows(query, key):  # not annotated: a compiler may pass indices of its types
        together = owner[query] == owner[key]
        return (
            together
            if rule is None or position is None
            else together & rule(position[query], position[key])
        )

    return allows


@dataclass(frozen=True)
class PackedRows:
    """Packed sequences in rows: consecutive ones share a row that is as long as the longest of all.

    Dense attention over L tokens in sequences of at most W then has at most 2 L W + W² scores, and
    not L².
    """

    index: Int[Tensor, "n W"]
    """Position in the pack of each place; 0 for an empty place."""
    place: Int[Tensor, " L"]
    """Place of each position of the pack, with the rows one behind the other."""
    mask: Bool[Tensor, "n 1 W W"]
    """True where attention is allowed: within a sequence, and of empty places to empty places."""

    @classmethod
    def of(cls, owner: Int[Tensor, " L"]) -> "PackedRows":
        """Lay out the sequences whose index at each position is ``owner``, as ``owners`` returns
        it.
        """
        lengths = owner.bincount().tolist()
        width = max(lengths)
        starts = []
        end = 0
        for length in lengths:
            begin = end if end % width + length <= width else -(-end // width) * width
            starts.append(begin)
            end = begin + length
        first = torch.tensor(starts, device=owner.device)[owner]
        offset = torch.arange(len(owner), device=owner.device)
        # searchsorted: where the sequence begins
        place = first + offset - torch.searchsorted(owner, owner)
        size = -(-end // width) * width
        index = offset.new_zeros(size)
        owner_at = offset.new_full((size,), -1)
        index[place] = offset
        owner_at[place] = owner
        owner_at = owner_at.view(-1, width)
        return cls(
            index.view(-1, width), place, (owner_at[:, :, None] == owner_at[:, None, :])[:, None]
        )
