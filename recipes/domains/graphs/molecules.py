"""Molecules as graphs: atoms and bonds, without hydrogen and without aromatic bonds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import networkx as nx

from recipes.data.fielded import Fielded
from recipes.data.sources.files import identity, matching, text_lines
from recipes.domains.graphs.sequences import sequences_of
from recipes.domains.graphs.slots import TYPE, Slots
from recipes.domains.molecules.metrics import molecule, rdkit
from recipes.domains.molecules.moses import Molecules, Split

ATOMS = ("C", "N", "O", "F", "S", "Cl", "Br")
"""Atoms of MOSES, none of which has a charge."""
BONDS = ("single", "double", "triple")
MOST = 27
"""Largest number of atoms of a molecule of MOSES."""


@dataclass(frozen=True, kw_only=True)
class MoleculeGraphs:
    """Molecules of MOSES, or of files with one SMILES a line, as graphs of atoms and bonds.

    Bonds of aromatic rings are single and double in turn; hydrogen follows from the valences.

    Args:
        files: a file, a folder or a quoted pattern; by default the molecules of MOSES.
        split: split of MOSES.
        slots: largest number of atoms.
        atoms: types of atoms; one with a charge has its signs, as in "N+".
        limit: number of molecules of MOSES, the first ones of the file; all by default.

    Raises:
        ModuleNotFoundError: on loading: rdkit or the data are not installed.
        ValueError: an unknown split, a limit below 1; on loading: no molecule, a molecule of more
            atoms than slots, one with another atom or bond.
    """

    files: str | None = None
    split: Split = "train"
    slots: int = MOST
    atoms: tuple[str, ...] = ATOMS
    limit: int | None = None

    def __post_init__(self) -> None:
        self._moses()
        Slots(self.slots, self.atoms, BONDS)

    def load(self) -> Fielded:
        smiles = self._moses().smiles() if self.files is None else self._lines()
        slots = Slots(self.slots, self.atoms, BONDS)
        names = [f"molecule {number}, {one}" for number, one in enumerate(smiles)]
        return sequences_of(map(graph_of, smiles), slots, names)

    def identity(self) -> dict[str, str]:
        return self._moses().identity() if self.files is None else identity(self._files(), None)

    def _moses(self) -> Molecules:
        return Molecules(split=self.split, limit=self.limit)

    def _files(self) -> list[Path]:
        return matching(str(self.files))

    def _lines(self) -> list[str]:
        return [line.strip() for file in self._files() for line in text_lines(file) if line.strip()]


def graph_of(smiles: str) -> nx.Graph:
    """Return the atoms and bonds of a molecule.

    Raises:
        ModuleNotFoundError: rdkit is not installed.
        ValueError: not the SMILES of a molecule.
    """
    parsed = molecule(smiles)
    if parsed is None:
        raise ValueError(f"{smiles!r} is not the SMILES of a molecule")
    from rdkit import Chem

    Chem.Kekulize(parsed, clearAromaticFlags=True)
    graph = nx.Graph()
    for atom in parsed.GetAtoms():
        charge = atom.GetFormalCharge()
        signs = "+" * charge + "-" * -charge
        graph.add_node(atom.GetIdx(), **{TYPE: atom.GetSymbol() + signs})
    for bond in parsed.GetBonds():
        kind = bond.GetBondType().name.lower()
        graph.add_edge(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), **{TYPE: kind})
    return graph


def smiles_of(graphs: Sequence[nx.Graph]) -> list[str]:
    """Return the canonical SMILES of graphs of atoms and bonds; "" where valences are violated.

    Raises:
        ModuleNotFoundError: rdkit is not installed.
    """
    rdkit()
    return [_smiles(graph) for graph in graphs]


def _smiles(graph: nx.Graph) -> str:
    from rdkit import Chem

    whole = Chem.RWMol()
    place = {}
    for node, kind in graph.nodes(data=TYPE):
        atom = Chem.Atom(kind.rstrip("+-"))
        atom.SetFormalCharge(kind.count("+") - kind.count("-"))
        place[node] = whole.AddAtom(atom)
    for first, second, kind in graph.edges(data=TYPE):
        whole.AddBond(place[first], place[second], Chem.BondType.names[kind.upper()])
    try:
        Chem.SanitizeMol(whole)
    except ValueError:  # of rdkit's exceptions, all are ValueErrors
        return ""
    return str(Chem.MolToSmiles(whole))
