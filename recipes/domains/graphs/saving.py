"""Samples of graphs in files: drawings, graph6, and SMILES of graphs of atoms and bonds."""

from collections.abc import Sequence
from pathlib import Path

import networkx as nx
import numpy as np
from jaxtyping import Int

from recipes.data.layout import Layout
from recipes.domains.graphs.drawing import draw
from recipes.domains.graphs.molecules import smiles_of
from recipes.domains.graphs.sequences import slots_of
from recipes.domains.molecules.drawing import draw as draw_molecules

PICTURE, GRAPH6, SMILES = ".png", ".g6", ".smi"
MOLECULES = "molecule_graphs"
"""Kind of source whose nodes and edges are atoms and bonds."""


def is_molecules(layout: Layout) -> bool:
    """Return whether the data are graphs of atoms and bonds."""
    return layout.kind == MOLECULES


def check_graph_file(path: Path, layout: Layout) -> None:
    """Raise ValueError for a file that graphs cannot be written to."""
    suffixes = (PICTURE, GRAPH6, SMILES) if is_molecules(layout) else (PICTURE, GRAPH6)
    if path.suffix not in suffixes:
        raise ValueError(f"path={path}: samples are graphs, must end in {', '.join(suffixes)}")


def write_graphs(path: Path, samples: Sequence[Int[np.ndarray, " L"]], layout: Layout) -> None:
    """Write samples as the suffix names: a drawing, a line of graph6 for each, which has no types,
    or the SMILES of molecules, an empty line for an invalid one.

    Raises:
        ModuleNotFoundError: rdkit is not installed, for molecules.
    """
    slots = slots_of(layout)
    graphs = [slots.decode(one) for one in samples]
    if path.suffix == GRAPH6:
        path.write_bytes(b"".join(nx.to_graph6_bytes(one, header=False) for one in graphs))
    elif path.suffix == SMILES:
        path.write_text("".join(one + "\n" for one in smiles_of(graphs)), encoding="utf-8")
    elif is_molecules(layout):
        draw_molecules(smiles_of(graphs)).save(path)
    else:
        draw(graphs).savefig(path, dpi=150)
