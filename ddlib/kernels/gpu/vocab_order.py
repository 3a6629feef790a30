"""Vocabulary in tree order: the tokens under any state of any level are contiguous."""

from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.hierarchies.tables import once
from ddlib.kernels.fused import FlatBatch
from ddlib.kernels.sibling_loss import FamilyQuery
from ddlib.parameterization.tree_softmax import Families

ALIGNED = 64
"""Columns are taken in multiples of this: cuBLAS is slow if rows of logits do not start at
multiples of 16 B.
"""


class Spans(NamedTuple):
    """For each row the places [low, high) of the tokens under z, and of those under the child of z
    that contains x.
    """

    outer_low: Int64[Tensor, "N"]
    outer_high: Int64[Tensor, "N"]
    inner_low: Int64[Tensor, "N"]
    inner_high: Int64[Tensor, "N"]


EXTRA = 1 << 22
"""Logits without effect that a product may have to save a product: on an H200 they take less time
than its launches.
"""


SPARSE = 8
"""Level 1 has grouped products where joint ones had so many times the logits needed, and more than
``EXTRA``: not measured on a GPU.
"""


class Segment(NamedTuple):
    """Consecutive rows in ``Order.rank`` whose states have tokens at places in [low, high) below
    them.
    """

    level: int
    """Level of the states of the rows."""
    child: int
    """Level of the inner set."""
    low: int
    high: int
    tokens: int

    def join(self, other: "Segment") -> "Segment | None":
        """Return both as one segment, or None if they are of two levels or it had too many logits
        without effect.
        """
        union = self._replace(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            tokens=self.tokens + other.tokens,
        )
        extra = union.logits - self.logits - other.logits
        return union if self[:2] == other[:2] and extra <= EXTRA else None

    @property
    def logits(self) -> int:
        """Number of logits of the segment."""
        return self.tokens * (self.high - self.low)


class Products(NamedTuple):
    """Products of the rows of a batch."""

    segments: list[Segment]
    """Those of rows of consecutive states, in the order of ``Order.rank``."""
    grouped: int
    """Number of rows in level 1 after them, each with the columns of its cluster."""


class Order:
    """Permutation of the tokens into tree order ("places"), and the range of places under each
    state.

    It depends on the hierarchy alone, see ``order_of``.

    Args:
        hierarchy: the hierarchy.
        top: the maps below this level are plain.
        hard: whether levels above the first predict the token among all tokens.
    """

    tokens: Tensor
    """(V rounded up,) the token at each place; padding repeats token 0."""
    spans: Tensor
    """(2, top + 1, V) int32: first and last place + 1 of the tokens that share a token's ancestor
    in each level.
    """

    def __init__(self, hierarchy: Hierarchy, top: int, hard: bool) -> None:
        self.vocab_size = hierarchy.vocab_size
        self.levels = hierarchy.levels
        self.ends = hierarchy.ends
        self.top = top
        self.hard = hard
        size = hierarchy.vocab_size
        device = hierarchy.starts.device
        rank = torch.arange(hierarchy.levels[top], device=device)
        for edge in reversed(hierarchy.maps[:top]):  # children of one parent become contiguous
            order = rank[edge.parents].argsort(stable=True)
            rank = _inverse(order)
        self.tokens = torch.cat([order, order.new_zeros(-size % ALIGNED)])
        self.bounds = [torch.stack([rank, rank + 1])]
        for level in range(1, top + 1):
            parents = hierarchy.between(0, level).parents
            members = hierarchy.levels[level]
            first = rank.new_full((members,), size).scatter_reduce_(0, parents, rank, "amin")
            last = rank.new_zeros(members).scatter_reduce_(0, parents, rank, "amax")
            self.bounds.append(torch.stack([first, last + 1]))
        above = [
            b if i == 0 else b[:, hierarchy.between(0, i).parents]
            for i, b in enumerate(self.bounds)
        ]
        self.spans = torch.stack(above, 1).to(torch.int32)
        self._parents = hierarchy.between(0, 1).parents

    @cached_property
    def clusters(self) -> Families:
        """Tokens by their ancestor in level 1; the host waits for the device when it is first
        read.
        """
        return Families(self._parents, torch.arange(self.vocab_size, device=self._parents.device))

    @property
    def identity(self) -> bool:
        """True if the permutation is the identity but for its padding: one level of one state."""
        return self.top == 1 == self.levels[1]

    def level(self, rows: FlatBatch) -> Int64[Tensor, "N"]:
        """Return the level of each row's state.

        0 for states above ``top``, which other parts handle.
        """
        level = torch.bucketize(rows.z, self.ends, right=True)
        return torch.where(level <= self.top, level, 0)

    def of(self, rows: FlatBatch, level: Tensor) -> Spans:
        """Return the spans of each row; those of rows in level 0 are empty."""
        child = (level - 1).clamp_min(0)
        low, high = self.spans[:, level, rows.x].long()
        if self.hard:
            child = torch.zeros_like(child)
            low = torch.where(level > 1, 0, low)
            high = torch.where(level > 1, self.vocab_size, high)
        inner = self.spans[:, child, rows.x].long()
        return Spans(low, torch.where(level > 0, high, low), *inner)

    def outer(self, level: int) -> Int[Tensor, "2 V"]:
        """Return first and last place + 1 of the tokens in the outer set of a row in ``level``, by
        its token.
        """
        spans = self.spans[:, level]
        if self.hard and level > 1:
            return torch.stack(
                [torch.zeros_like(spans[0]), torch.full_like(spans[1], self.vocab_size)]
            )
        return spans

    def rank(self, level: Tensor, spans: Spans) -> Int64[Tensor, "N"]:
        """Sort rows by level from the top, then by inner set.

        Rows that need the same columns become neighbours.
        """
        # V + 1 exceeds every place, so levels decide first
        return ((self.top - level) * (self.vocab_size + 1) + spans.inner_low).argsort()

    def products(self, rows: FlatBatch, level: Tensor) -> Products:
        """Return the products of rows in the order of ``rank``; the host waits for the device here.

        A segment holds the rows of one state, or of several states one after another: their
        products take less time as one, until most of its logits have no effect.
        """
        counts = []
        for i in range(1, self.top + 1):
            # meaningless for states of other levels, which are not counted
            member = (rows.z - sum(self.levels[:i])).clamp(0, self.levels[i] - 1)
            none = torch.zeros_like(self.bounds[i][0])
            counts.append(none.scatter_add_(0, member, (level == i).long()))
        table = torch.cat(
            [torch.cat([b, c[None]]) for b, c in zip(self.bounds[1:], counts, strict=True)], 1
        )
        members = list(zip(*table.tolist(), strict=True))
        segments = list[Segment]()
        for i in reversed(range(1, self.top + 1)):
            start = sum(self.levels[1:i])
            in_level = sorted(members[start : start + self.levels[i]])
            if self.hard and i > 1:
                tokens = sum(tokens for _, _, tokens in in_level)
                segments.append(Segment(i, 0, 0, self.vocab_size, tokens))
            else:
                segments += [Segment(i, 0 if self.hard else i - 1, *member) for member in in_level]
        merged = list[Segment]()
        for segment in segments:
            if segment.tokens == 0:
                continue
            union = merged[-1].join(segment) if merged else None
            if union is None:
                merged.append(segment)
            else:
                merged[-1] = union
        needed = sum(segment.logits for segment in segments if segment.level == 1)
        computed = sum(segment.logits for segment in merged if segment.level == 1)
        if computed <= max(SPARSE * needed, needed + EXTRA):
            return Products(merged, 0)
        above = [segment for segment in merged if segment.level > 1]
        return Products(above, sum(segment.tokens for segment in merged[len(above) :]))


@once
def order_of(hierarchy: Hierarchy, top: int, hard: bool) -> Order:
    """Return the order of a hierarchy, which is computed once; arguments as ``Order``."""
    return Order(hierarchy, top, hard)


class Ranking:
    """Rows of a batch in the order of the columns that they need.

    It depends on noise alone, not on the network.
    """

    def __init__(self, order: Order, rows: FlatBatch) -> None:
        self.order = order
        self._rows = rows
        self._level = order.level(rows)
        self.spans = order.of(rows, self._level)
        self.index = order.rank(self._level, self.spans)
        """Rows in the order of processing."""

    @cached_property
    def products(self) -> Products:
        """Products of ``index``; the host waits for the device when they are first read."""
        return self.order.products(self._rows, self._level)

    @property
    def query(self) -> FamilyQuery:
        """The rows in level 1 with their clusters."""
        clusters = self.order.clusters
        child = self._rows.x
        return FamilyQuery(clusters, self._level == 1, child, clusters.parents[child])


def _inverse(order: Tensor) -> Tensor:
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return place
