"""Sequences of graphs, with the alphabets of their positions."""

from collections.abc import Iterable, Iterator, Sequence

import networkx as nx
import numpy as np

from recipes.data import Layout
from recipes.data.cells import Cells
from recipes.data.fielded import Fielded
from recipes.data.fields import Field
from recipes.domains.graphs.slots import EDGE, NODE, SIZE, Slots, training_memory


def sequences_of(
    graphs: Iterable[nx.Graph], slots: Slots, names: Sequence[str] | None = None
) -> Fielded:
    """Return graphs as sequences, of which the number of nodes and what is absent are given.

    Args:
        graphs: graphs, whose nodes and edges have the attribute "type" where there are several.
        slots: largest number of nodes, and the types.
        names: names of the graphs for messages.

    Raises:
        TypeError, ValueError: as ``Slots.encode``; no graph.
    """
    rows = []
    for number, graph in enumerate(graphs):
        rows.append(slots.encode(graph, names[number] if names else f"graph {number}"))
    if not rows:
        raise ValueError("graphs is empty: must have at least one")
    ids = np.stack(rows)
    sizes = Cells(tuple((float(size),) for size in range(1, slots.count + 1)), decimals=0)
    cells = {SIZE: sizes, NODE: None, EDGE: None}
    return Fielded.of(
        ids,
        [
            Field(name=name, symbols=symbols, cells=cells[name])
            for name, symbols in slots.alphabets.items()
        ],
        slots.positions,
        names=slots.names,
        present_from=tuple(slots.present_from.tolist()),
        given=list(slots.given(ids)),
        notes=tuple(_remarks(slots.count)),
        recipe="graphs communities",
    )


def _remarks(count: int) -> Iterator[str]:
    """Yield the memory of training, where it is 1 GB or more for each graph."""
    memory = training_memory(count)
    if memory >= 1:
        yield (
            f"{count} slots: about {memory:.1f} GB for each graph of a batch in training at full "
            "size; --estimate 1 behind a recipe measures it"
        )


def is_graphs(layout: Layout) -> bool:
    """Return whether the sequences of a folder are graphs."""
    return tuple(one.name for one in layout.fields) == (SIZE, NODE, EDGE)


def slots_of(layout: Layout) -> Slots:
    """Return the slots of a folder of graphs."""
    size, node, edge = layout.fields
    return Slots(len(size.symbols), node.symbols, edge.symbols[1:])
