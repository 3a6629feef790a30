"""Graphs of files: graph6, sparse6, or nodes and links in JSON."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import networkx as nx

from recipes.data.fielded import Fielded
from recipes.data.sources.files import identity, matching, suffix, text_lines
from recipes.domains.graphs.sequences import sequences_of
from recipes.domains.graphs.slots import TYPE, Slots, check_graph, check_largest

KEYS = {"nodes": ("id",), "edges": ("source", "target")}
"""Keys of the objects in each list of a JSON line."""


def _linked(values: Any) -> nx.Graph:
    """Return the graph of nodes and links.

    networkx merges nodes, and edges, that are listed twice: here they are refused.

    Raises:
        TypeError, ValueError: not nodes and links; a node or an edge twice, an edge of no node.
    """
    if not isinstance(values, dict):
        raise TypeError(f"is {type(values).__name__}, must be an object with nodes and edges")
    for part, keys in KEYS.items():
        if part not in values:
            raise TypeError(f"has no {part!r} among {', '.join(values)}")
        if not isinstance(values[part], list):
            raise TypeError(f"{part!r} is {type(values[part]).__name__}, must be a list")
        for entry in values[part]:
            if not isinstance(entry, dict) or not entry.keys() >= {*keys}:
                raise TypeError(
                    f"{part!r} holds {repr(entry)[:60]}, must hold objects with "
                    f"{' and '.join(keys)}"
                )
    graph = nx.node_link_graph(values, edges="edges", multigraph=False)
    listed = len(values["nodes"])
    if len(graph) != listed:
        raise ValueError(
            f"{listed} nodes are listed, and {len(graph)} different ones are in nodes and edges"
        )
    if not graph.is_multigraph() and graph.number_of_edges() != len(values["edges"]):
        raise ValueError("two edges are between the same nodes, must be one")
    return graph


READERS: dict[str, Callable[[str], nx.Graph]] = {
    ".g6": lambda line: nx.from_graph6_bytes(line.encode()),
    ".s6": lambda line: nx.from_sparse6_bytes(line.encode()),
    ".jsonl": lambda line: _linked(json.loads(line)),
}
"""Function that reads a graph of a line, by suffix."""


@dataclass(frozen=True)
class Graphs:
    """Undirected graphs, one a line: graph6 (.g6), sparse6 (.s6), or JSON (.jsonl).

    A line of JSON is what ``json.dumps(networkx.node_link_data(graph, edges="edges"))`` writes. The
    attribute "type" of nodes and edges, if there is one, is their type.

    Args:
        files: a file, a folder or a quoted pattern.
        slots: largest number of nodes; by default that of the largest graph.

    Raises:
        ValueError: fewer than two slots, or more than a network can take.
        FileNotFoundError, ValueError: on loading: no such file; a line that is not a graph; a graph
            that is directed, has several edges between two nodes or one from a node to itself, is
            larger than the slots, or has types at a part of its nodes or edges; with file and line.
    """

    files: str
    slots: int | None = None

    def __post_init__(self) -> None:
        if self.slots is not None:
            Slots(self.slots)

    def load(self) -> Fielded:
        graphs = dict(self._read())
        if not graphs:
            raise ValueError(f"files={self.files!r}: there is no line with a graph")
        types = _types(graphs, "nodes"), _types(graphs, "edges")
        count = max(len(graph) for graph in graphs.values()) if self.slots is None else self.slots
        found = sequences_of(graphs.values(), Slots(count, *types), list(graphs))
        unread = _unread(graphs.values(), "nodes"), _unread(graphs.values(), "edges")
        return replace(found, notes=(*found.notes, *filter(None, unread)))

    def identity(self) -> dict[str, str]:
        return identity(self._files(), None)

    def _files(self) -> list[Path]:
        return matching(self.files, tuple(READERS))

    def _read(self) -> Iterator[tuple[str, nx.Graph]]:
        for file in self._files():
            for number, line in enumerate(text_lines(file), start=1):
                if not line.strip():
                    continue
                name = f"{file}, line {number}"
                try:
                    graph = READERS[suffix(file)](line)
                except (nx.NetworkXException, ValueError, KeyError, TypeError) as error:
                    raise ValueError(
                        f"{name}: is not a graph in {suffix(file)}: {error}"
                    ) from error
                check_graph(graph, name)
                check_largest(name, len(graph))
                yield name, graph


def _unread(graphs: Iterable[nx.Graph], part: str) -> str:
    """Return a remark on the attributes of nodes or edges that are not read, "" for none."""
    every = chain.from_iterable(getattr(one, part).data() for one in graphs)
    names = {str(name) for *_, values in every for name in values} - {TYPE}
    if not names:
        return ""
    return f"{part}: attributes that are not read: {', '.join(sorted(names))}; types are {TYPE!r}"


def _types(graphs: Mapping[str, nx.Graph], part: str) -> tuple[str, ...]:
    """Return the types of all nodes, or of all edges; one where they have none.

    Raises:
        ValueError: a part of them has none.
    """
    every = set[str]()
    without = None
    for name, graph in graphs.items():
        for *_, kind in getattr(graph, part).data(TYPE):
            if kind is None:
                without = name
            else:
                every.add(str(kind))
    if every and without is not None:
        raise ValueError(f"{without}: one of its {part} has no attribute {TYPE!r}, others have it")
    return tuple(sorted(every)) or (part.removesuffix("s"),)
