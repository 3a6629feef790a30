"""Drawings of graphs, by networkx and matplotlib."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOR = "#3a6ea5"


def draw(
    graphs: Sequence[nx.Graph], *, columns: int = 6, captions: Sequence[str] = (), seed: int = 0
) -> "Figure":
    """Return one figure with all graphs side by side.

    Args:
        graphs: the graphs.
        columns: graphs in a row.
        captions: text above each graph.
        seed: seed of the places of the nodes.

    Raises:
        ValueError: no graphs, fewer than one column, a wrong number of captions.
    """
    from matplotlib.figure import Figure

    if not graphs:
        raise ValueError("graphs is empty: must have at least one")
    if columns < 1:
        raise ValueError(f"columns={columns}: must be at least 1")
    if captions and len(captions) != len(graphs):
        raise ValueError(
            f"captions has {len(captions)} entries, must have {len(graphs)}: one for each graph"
        )
    columns = min(columns, len(graphs))
    rows = -(-len(graphs) // columns)
    figure = Figure(figsize=(1.6 * columns, 1.7 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for number, place in enumerate(axes):
        place.set_axis_off()
        if number >= len(graphs):
            continue
        graph = graphs[number]
        positions = nx.spring_layout(graph, seed=seed)
        nx.draw_networkx_edges(graph, positions, ax=place, width=0.7, edge_color="#8a8a8a")
        nx.draw_networkx_nodes(graph, positions, ax=place, node_size=18, node_color=COLOR)
        if captions:
            place.set_title(captions[number], fontsize=8)
    return figure
