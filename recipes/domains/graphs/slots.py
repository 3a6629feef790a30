"""Graphs as sequences: the number of nodes, the types of the nodes, and those of the pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np
from jaxtyping import Bool, Int

NONE = "none"
"""Type of a pair without an edge: id 0 of the field of pairs."""
TYPE = "type"
"""Attribute of nodes and edges of a graph of networkx that holds their type."""
SIZE, NODE, EDGE = "size", "node", "edge"
"""Names of the fields, in the order of their positions."""

MOST = 1000
"""Largest number of slots."""
_BYTES = 15 * 4 * 64 * 8
"""Measured bytes of one graph in training, over the square of the number of slots: 15 float32
matrices in each of 8 blocks with 64 features of a pair, the full size of ``recipes.graphs``.
"""


def training_memory(count: int) -> float:
    """Return about the GB that one graph of ``count`` slots takes in training at full size."""
    return _BYTES * count**2 / 1e9


def check_largest(name: str, count: int) -> None:
    """Raise ValueError for more slots than ``MOST``, with the memory that they would take.

    Args:
        name: name of the graph or of the argument, for messages.
        count: number of slots.
    """
    if count > MOST:
        pairs = count * (count - 1) // 2
        raise ValueError(
            f"{name}: {count:,} nodes are {1 + count + pairs:,} positions, {pairs:,} of them "
            f"pairs; one graph would take about {training_memory(count):,.0f} GB in training "
            f"(8 blocks, 64 features of a pair); must be at most {MOST:,} nodes"
        )


@dataclass(frozen=True)
class Slots:
    """Sequences of graphs of at most M nodes: 1 + M (M + 1) / 2 ids.

    The first id is the number n of nodes minus 1. The types of M nodes follow, then those of the
    pairs i < j in the order (0, 1), (0, 2), ..., (M - 2, M - 1). The first n nodes are present;
    absent nodes and pairs of them have id 0.

    Args:
        count: M.
        node_types: names of the types of nodes; one where nodes have no types.
        edge_types: names of the types of edges; one where edges have no types.

    Raises:
        ValueError: fewer than two slots or more than ``MOST``, no type, a type that occurs twice
            or is "none".
    """

    count: int
    node_types: Sequence[str] = ("node",)
    edge_types: Sequence[str] = ("edge",)

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"slots={self.count}: must be at least 2, a pair of nodes")
        check_largest(f"slots={self.count}", self.count)
        for name, types in (("node_types", self.node_types), ("edge_types", self.edge_types)):
            if not types or len(set(types)) < len(types) or NONE in types:
                raise ValueError(f"{name}={tuple(types)}: must be distinct names, none is {NONE!r}")

    @cached_property
    def pairs(self) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"]]:
        """The smaller and the larger node of each pair."""
        return np.triu_indices(self.count, 1)

    @cached_property
    def positions(self) -> tuple[str, ...]:
        """Name of the field of each position."""
        return (SIZE, *[NODE] * self.count, *[EDGE] * len(self.pairs[0]))

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each position: size, node[0], node[1], ..., edge[0-1], edge[0-2], ..."""
        nodes = [f"{NODE}[{node}]" for node in range(self.count)]
        ends = zip(*(side.tolist() for side in self.pairs), strict=True)
        return (SIZE, *nodes, *(f"{EDGE}[{first}-{second}]" for first, second in ends))

    @cached_property
    def present_from(self) -> Int[np.ndarray, " L"]:
        """Least id of the number of nodes with which each position is present."""
        return np.concatenate([[0], np.arange(self.count), self.pairs[1]])

    @property
    def alphabets(self) -> dict[str, tuple[str, ...]]:
        """Names of the tokens of each field."""
        sizes = tuple(str(n + 1) for n in range(self.count))
        return {SIZE: sizes, NODE: tuple(self.node_types), EDGE: (NONE, *self.edge_types)}

    def encode(self, graph: nx.Graph, name: str = "graph") -> Int[np.ndarray, " L"]:
        """Return the ids of a graph, its nodes in the order in which it lists them.

        Args:
            graph: a graph whose nodes and edges have the attribute "type", where there are several.
            name: name of the graph for messages.

        Raises:
            TypeError: not a graph of networkx.
            ValueError: a directed graph, one with several edges between two nodes, or with an edge
                from a node to itself; fewer than 2 nodes, or more than there are slots; an unknown
                type.
        """
        check_graph(graph, name)
        nodes = list(graph)
        if not 2 <= len(nodes) <= self.count:
            raise ValueError(
                f"{name}: has {len(nodes)} nodes, must have 2 to {self.count}, the number of slots"
            )
        node_ids = np.zeros(self.count, dtype=np.int64)
        matrix = np.zeros((self.count, self.count), dtype=np.int64)
        place = {node: number for number, node in enumerate(nodes)}
        for node, kind in graph.nodes(data=TYPE):
            node_ids[place[node]] = _id(kind, self.node_types, f"{name}: node {node!r}")
        for first, second, kind in graph.edges(data=TYPE):
            number = _id(kind, self.edge_types, f"{name}: edge {first!r}-{second!r}")
            matrix[place[first], place[second]] = matrix[place[second], place[first]] = 1 + number
        return np.concatenate([[len(nodes) - 1], node_ids, matrix[self.pairs]])

    def decode(self, ids: Int[np.ndarray, " L"]) -> nx.Graph:
        """Return the graph of a sequence, with the types of nodes and edges.

        Raises:
            ValueError: another length.
        """
        if np.shape(ids) != (len(self.positions),):
            raise ValueError(
                f"ids have shape {np.shape(ids)}, must be ({len(self.positions)},): the number of "
                f"nodes, {self.count} nodes and their pairs"
            )
        count = int(ids[0]) + 1
        types = [str(self.node_types[int(number)]) for number in ids[1 : count + 1]]
        graph = nx.Graph()
        graph.add_nodes_from((node, {TYPE: kind}) for node, kind in enumerate(types))
        values = np.asarray(ids[1 + self.count :])
        for pair in np.flatnonzero(values):
            first, second = (int(side[pair]) for side in self.pairs)
            if second < count:
                graph.add_edge(first, second, **{TYPE: str(self.edge_types[int(values[pair]) - 1])})
        return graph

    def given(self, ids: Int[np.ndarray, "N L"]) -> Bool[np.ndarray, "N L"]:
        """Return True at what a model is given: the number of nodes, and all that is absent.

        Nodes of a single type are given too: there is nothing to learn of them.
        """
        marks = self.present_from > ids[:, :1]
        marks[:, 0] = True
        marks[:, 1 : self.count + 1] |= len(self.node_types) == 1
        return marks


def check_graph(graph: nx.Graph, name: str) -> None:
    """Raise unless a graph is undirected, with at most one edge between two different nodes.

    Raises:
        TypeError: not a graph of networkx.
        ValueError: naming the graph and the rule.
    """
    if not isinstance(graph, nx.Graph):
        raise TypeError(f"{name}: is {type(graph).__name__}, must be a graph of networkx")
    if graph.is_directed():
        raise ValueError(f"{name}: is directed, must be undirected: graph.to_undirected()")
    if graph.is_multigraph():
        raise ValueError(
            f"{name}: may have several edges between two nodes, must have one: nx.Graph(graph)"
        )
    loop = next(iter(nx.nodes_with_selfloops(graph)), None)
    if loop is not None:
        raise ValueError(f"{name}: has an edge from node {loop!r} to itself, must have none")


def _id(kind: object, types: Sequence[str], place: str) -> int:
    """Return the number of a type; a single type need not be stated."""
    if kind is None and len(types) == 1:
        return 0
    if str(kind) not in types:
        listed = ", ".join(map(repr, types))
        raise ValueError(f"{place}: has type {kind!r}, must be one of {listed}")
    return list(types).index(str(kind))
