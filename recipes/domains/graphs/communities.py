"""Random graphs of two communities, drawn by networkx."""

from dataclasses import dataclass

import networkx as nx
import numpy as np

from recipes.data.fielded import Fielded
from recipes.domains.graphs.sequences import sequences_of
from recipes.domains.graphs.slots import Slots

SMALLEST = 6
"""Least number of nodes of a community."""
INSIDE = 0.7
"""Probability of an edge within a community."""
BETWEEN = 0.05
"""Expected number of edges between the communities per node of the graph; at least one is drawn."""


@dataclass(frozen=True, kw_only=True)
class Communities:
    """Graphs of two communities of equal size, 12 to 20 nodes together, as "community small" of
    GraphRNN (You et al. 2018).

    Each pair within a community is an edge with probability 0.7; between the communities there are
    on average 0.05 edges per node, and at least one. Graphs that are not connected are drawn
    again. In the file of GraphRNN, which papers use, all communities of a size are the same graph:
    its numbers cannot be compared.

    Args:
        count: number of graphs.
        slots: largest number of nodes, and the number of slots.
        seed: seed of the graphs.

    Raises:
        ValueError: no graph, fewer than 12 slots.
    """

    count: int = 2000
    slots: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count={self.count}: must be at least 1")
        if self.slots < 2 * SMALLEST:
            raise ValueError(f"slots={self.slots}: must be at least {2 * SMALLEST}")
        Slots(self.slots)

    def load(self) -> Fielded:
        return sequences_of(self.graphs(), Slots(self.slots))

    def graphs(self) -> list[nx.Graph]:
        """Return the graphs; the first ones are the same for every ``count``."""
        random = np.random.default_rng(self.seed)
        return [_draw(random, self.slots // 2) for _ in range(self.count)]

    def identity(self) -> dict[str, str]:
        """Return the version of networkx, whose draws may change."""
        return {"networkx": nx.__version__}


def _draw(random: np.random.Generator, largest: int) -> nx.Graph:
    while True:
        size = int(random.integers(SMALLEST, largest + 1))
        seeds = random.integers(2**31, size=2).tolist()
        graph = nx.disjoint_union_all([nx.gnp_random_graph(size, INSIDE, seed=s) for s in seeds])
        between = random.random((size, size)) < 2 * BETWEEN / size
        between[tuple(random.integers(size, size=2))] |= not between.any()
        graph.add_edges_from((int(i), size + int(j)) for i, j in np.argwhere(between))
        if nx.is_connected(graph):
            return graph
