"""Draws of ancestors: by a table where each state has one in each level, else edge by edge."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from ddlib.hierarchies.kernels import Kernel
from ddlib.typing import Tokens
from ddlib.utils.precision import Float64Module


class Ascent(Float64Module):
    """Draws ancestors of states in levels that are not below theirs."""

    @abstractmethod
    def forward(self, z: Tokens, level: Tokens, noise: Iterator[Tensor]) -> Tokens:
        """Draw the ancestors of ``z`` in ``level``; a state of a level that is not lower stays.

        Args:
            z: states.
            level: levels, in the shape of ``z``.
            noise: uniforms, each of that shape; one is taken for each edge that is not plain.
        """


class ByTable(Ascent):
    """Ascent along plain edges.

    Args:
        maps: one plain kernel per edge, lowest first.
        starts: first state of each level, and the number of states.
    """

    table: Int64[Tensor, "levels S"]
    """Ancestor of each state in each level; the state itself in its own level and below."""

    def __init__(self, maps: Sequence[Kernel], starts: Int64[Tensor, "n"]) -> None:
        super().__init__()
        ancestors = torch.arange(sum(edge.num_children for edge in maps) + maps[-1].num_parents)
        rows = [ancestors.to(starts.device)]
        begin = 0
        for edge in maps:
            end = begin + edge.num_children
            # of a state not above the edge's children: the parent of its ancestor among these
            above = edge.parents[rows[-1][:end] - begin] + end
            rows.append(torch.cat([above, rows[-1][end:]]))
            begin = end
        self.table = torch.stack(rows)

    def forward(self, z: Tokens, level: Tokens, noise: Iterator[Tensor]) -> Tokens:
        return self.table[level, z]


class AlongEdges(Ascent):
    """Ascent edge by edge.

    Args:
        maps: one kernel per edge, lowest first.
        starts: first state of each level, and the number of states.
    """

    starts: Tensor

    def __init__(self, maps: Sequence[Kernel], starts: Int64[Tensor, "n"]) -> None:
        super().__init__()
        self.edges = tuple(maps)
        self.starts = starts
        # torch < 2.13, compiled on a GPU, reads a view from its memory's start
        self.ends = starts[1:-1].clone()

    def forward(self, z: Tokens, level: Tokens, noise: Iterator[Tensor]) -> Tokens:
        start = torch.bucketize(z.contiguous(), self.ends, right=True)
        result = z
        member = z - self.starts[start]
        first = 0
        for i, edge in enumerate(self.edges, start=1):
            first += edge.num_children
            ascending = start < i
            # positions that start above this edge read child 0, and their parent is discarded
            child = member * ascending
            parent = edge.parents[child] if edge.plain else edge.sample(child, next(noise))
            member = torch.where(ascending, parent, member)
            result = torch.where(ascending & (level == i), parent + first, result)
        return result


def ascent_of(maps: Sequence[Kernel], starts: Int64[Tensor, "n"]) -> Ascent:
    """Return the ascent along edges with these kernels."""
    return (ByTable if all(edge.plain for edge in maps) else AlongEdges)(maps, starts)
