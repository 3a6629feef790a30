"""The vocabulary sorted along a hierarchy, so that the tokens under any member of any level follow each other."""

from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.kernels.tile import Rows

ALIGNED = 64
"""Tokens are taken in multiples of this: cuBLAS is slow where rows of logits do not begin at multiples of 16 bytes."""


class Spans(NamedTuple):
    """For each token the places [lo, high) of the tokens under z, and of those under the child of z that x is in."""

    outer_low: Int64[Tensor, "N"]
    outer_high: Int64[Tensor, "N"]
    inner_low: Int64[Tensor, "N"]
    inner_high: Int64[Tensor, "N"]


class Segment(NamedTuple):
    """Tokens that follow each other in ``Order.rank`` and have the tokens [low, high) under their states."""

    child: int
    """Level of the inner set."""
    low: int
    high: int
    tokens: int


class Order:
    """A permutation of the tokens, and the places of each member's tokens.

    It is made anew for every batch: two sorts of V numbers or fewer, and nothing that the host waits for.

    Args:
        hierarchy: where tokens jump.
        top: the maps below this level are plain.
        hard: whether the levels above the first ask for the token among all tokens.
    """

    words: Tensor
    """(V rounded up,) the token at each place; padding repeats token 0."""
    spans: Tensor
    """(2, top + 1, V) int32: first place, and last + 1, of the tokens that share a token's ancestor in each level."""

    def __init__(self, hierarchy: Hierarchy, top: int, hard: bool) -> None:
        self.hierarchy, self.top, self.hard = hierarchy, top, hard
        size, device = hierarchy.vocab_size, hierarchy.starts.device
        rank = torch.arange(hierarchy.levels[top], device=device)
        for edge in reversed(hierarchy.maps[:top]):  # members of one parent follow each other
            order = rank[edge.parents].argsort(stable=True)
            rank = _inverse(order)
        self.words = torch.cat([order, order.new_zeros(-size % ALIGNED)])
        self.bounds = [torch.stack([rank, rank + 1])]
        for level in range(1, top + 1):
            parents, members = hierarchy.between(0, level).parents, hierarchy.levels[level]
            first = rank.new_full((members,), size).scatter_reduce_(0, parents, rank, "amin")
            last = rank.new_zeros(members).scatter_reduce_(0, parents, rank, "amax")
            self.bounds.append(torch.stack([first, last + 1]))
        above = [b if i == 0 else b[:, hierarchy.between(0, i).parents] for i, b in enumerate(self.bounds)]
        self.spans = torch.stack(above, 1).to(torch.int32)

    @property
    def identity(self) -> bool:
        """Whether the tokens stay where they are: one level, and no padding."""
        return self.top == 1 == self.hierarchy.levels[1] and len(self.words) == self.hierarchy.vocab_size

    def level(self, rows: Rows) -> Int64[Tensor, "N"]:
        """The level of each token's state; 0 for those above ``top``, which are not served here, as for tokens."""
        level = self.hierarchy.level_of(rows.z)
        return torch.where(level <= self.top, level, 0)

    def of(self, rows: Rows, level: Tensor) -> Spans:
        """Each token's spans; those of tokens are empty."""
        child = (level - 1).clamp_min(0)
        low, high = self.spans[:, level, rows.x].long()
        if self.hard:
            child = torch.zeros_like(child)
            low, high = torch.where(level > 1, 0, low), torch.where(level > 1, self.hierarchy.vocab_size, high)
        inner = self.spans[:, child, rows.x].long()
        return Spans(low, torch.where(level > 0, high, low), *inner)

    def rank(self, level: Tensor, spans: Spans) -> Int64[Tensor, "N"]:
        """Tokens by level from the top, then by their inner set: tokens that need the same columns are neighbours."""
        return ((self.top - level) * (self.hierarchy.vocab_size + 1) + spans.inner_low).argsort()

    def segments(self, rows: Rows, level: Tensor) -> list[Segment]:
        """The tokens in the order of ``rank``, member by member. The one place where the host waits for the device."""
        counts = [
            torch.zeros_like(self.bounds[i][0]).scatter_add_(0, self.hierarchy.local(rows.z, i), (level == i).long())
            for i in range(1, self.top + 1)
        ]
        table = torch.cat([torch.cat([b, c[None]]) for b, c in zip(self.bounds[1:], counts, strict=True)], 1)
        members = list(zip(*table.tolist(), strict=True))
        found = []
        for i in reversed(range(1, self.top + 1)):
            start = sum(self.hierarchy.levels[1:i])
            mine = sorted(members[start : start + self.hierarchy.levels[i]])
            if self.hard and i > 1:
                found.append(Segment(0, 0, self.hierarchy.vocab_size, sum(tokens for _, _, tokens in mine)))
            else:
                found += [Segment(0 if self.hard else i - 1, *member) for member in mine]
        return [segment for segment in found if segment.tokens > 0]


def _inverse(order: Tensor) -> Tensor:
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return place
