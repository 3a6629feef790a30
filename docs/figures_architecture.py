"""Draw packages and their imports into docs/images/architecture.png: ``python
docs/figures_architecture.py``.

An arrow points from a package to a package that it imports. The figure shows the transitive
reduction of the import graph. The edges are stored in the metadata of the image, and a test
compares them with the code.
"""

import ast
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
from matplotlib import pyplot as plt

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "architecture.png"
COLORS = {"recipes": "#f6d9b8", "ddlib_models": "#d5e6c8", "ddlib": "#cfe0f1"}


def package(module: str) -> str:
    """Node of a module in the graph: a package of ddlib, or all of recipes or ddlib_models."""
    return ".".join(module.split(".")[: 2 if module.startswith("ddlib.") else 1])


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports at the top level."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def imports() -> nx.DiGraph:
    """The transitive reduction of the imports between packages."""
    graph = nx.DiGraph()
    for root in COLORS:
        for path in (ROOT / root).rglob("*.py"):
            module = package(".".join(path.relative_to(ROOT).with_suffix("").parts))
            graph.add_edges_from(
                (module, package(name)) for name in imported(path) if name.split(".")[0] in COLORS
            )
    files = {
        node: ROOT / node.replace(".", "/")
        for node in graph
        if node != "ddlib" and "__" not in node
    }
    known = [
        node for node, path in files.items() if path.is_dir() or path.with_suffix(".py").exists()
    ]
    graph = nx.DiGraph(graph.subgraph(known))
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return nx.transitive_reduction(graph)


def places(graph: nx.DiGraph) -> dict[str, tuple[float, float]]:
    """Coordinates of the nodes: rows by the longest chain of imports, columns close to those of
    neighbours.
    """
    rows = [sorted(row) for row in nx.topological_generations(graph.reverse())]
    at = {
        name: (x - (len(row) - 1) / 2, y)
        for y, row in enumerate(rows)
        for x, name in enumerate(row)
    }
    for _ in range(40):
        for row in rows:
            row.sort(
                key=lambda name: statistics.mean(
                    at[other][0] for other in nx.all_neighbors(graph, name)
                )
            )
            for x, name in enumerate(row):
                at[name] = x - (len(row) - 1) / 2, at[name][1]
    return at


def main() -> None:
    graph = imports()
    figure, axes = plt.subplots(figsize=(10.5, 8.0))
    at = places(graph)
    for name, (x, y) in at.items():
        style = {"boxstyle": "round,pad=0.45", "fc": COLORS[name.split(".")[0]], "ec": "#555555"}
        axes.text(x, y, name.removeprefix("ddlib."), ha="center", va="center", bbox=style, zorder=3)
    arrow = {
        "arrowstyle": "-|>",
        "color": "#555555",
        "shrinkA": 0,
        "shrinkB": 0,
        "connectionstyle": "arc3,rad=0.06",
    }
    for (x, y), (below_x, below_y) in ((at[above], at[below]) for above, below in graph.edges):
        axes.annotate("", (below_x, below_y + 0.2), (x, y - 0.2), arrowprops=arrow, zorder=2)
    axes.set(xlim=(-2.3, 2.3), ylim=(-0.5, 0.5 + max(y for _, y in at.values())))
    axes.axis("off")
    edges = json.dumps(sorted(map(list, graph.edges)))
    figure.savefig(PICTURE, dpi=110, bbox_inches="tight", metadata={"Description": edges})


if __name__ == "__main__":
    main()
