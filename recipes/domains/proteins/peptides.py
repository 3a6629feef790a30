"""Peptides labelled by their activity, from the package ``modlamp``."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from recipes.data.packaged import digests, package_path
from recipes.data.sequences import Ragged, Sequences

AMINO_ACIDS = tuple("ACDEFGHIKLMNPQRSTVWY")
"""One-letter codes of the 20 amino acids."""

Table = Literal["AMPvsUniProt", "AMPvsTMset", "ACP_CancPPD_vs_TM", "ACP_CancPPD_vs_Random"]
TABLES: tuple[Table, ...] = (
    "AMPvsUniProt",
    "AMPvsTMset",
    "ACP_CancPPD_vs_TM",
    "ACP_CancPPD_vs_Random",
)


@dataclass(frozen=True, kw_only=True)
class Peptides:
    """Peptides in two classes of equal size, as the package modlamp (Müller et al. 2017) holds
    them.

    Positive classes are antimicrobial (AMP) or anticancer (ACP) peptides; negative ones are
    fragments of other proteins from UniProt, transmembrane helices (TM) or random sequences. The
    classes are returned in turn.

    Args:
        table: name of the table: 5,200 peptides of 7 to 174 amino acids in AMPvsUniProt; 412, 826
            and 826 in the others.

    Raises:
        ValueError: an unknown table.
    """

    table: Table = "AMPvsUniProt"

    def __post_init__(self) -> None:
        if self.table not in TABLES:
            raise ValueError(f"table={self.table!r}: must be one of {', '.join(TABLES)}")

    def load(self) -> Sequences:
        """Return the peptides with their classes as labels.

        Raises:
            ModuleNotFoundError: the package is not installed.
            ValueError: a row with another letter than the 20 amino acids.
        """
        with _file(self.table).open(newline="", encoding="utf-8") as content:
            (_, _, *classes), *rows = csv.reader(content, skipinitialspace=True)
        number = {letter: index for index, letter in enumerate(AMINO_ACIDS)}
        for line, (peptide, _) in enumerate(rows, start=2):
            if other := set(peptide) - number.keys():
                raise ValueError(
                    f"{_file(self.table)}, line {line}: {min(other)!r} is not one of the amino "
                    "acids"
                )
        labels = np.array([int(label) for _, label in rows], dtype=np.int64)
        places = [np.flatnonzero(labels == label) for label in range(len(classes))]
        order = np.lexsort((labels, _turns(places, len(rows))))
        peptides = [rows[row][0] for row in order]
        ids = np.array(
            [number[letter] for peptide in peptides for letter in peptide], dtype=np.int16
        )
        return Sequences(
            ids=Ragged(ids, np.cumsum([0, *map(len, peptides)])),
            symbols=AMINO_ACIDS,
            labels=labels[order],
            classes=tuple(classes),
        )

    def identity(self) -> dict[str, str]:
        """Return the hash of the table's file, by its name."""
        return digests([_file(self.table)])


def _turns(places: list[np.ndarray], count: int) -> np.ndarray:
    """Return for each row its number among the rows of its class."""
    turns = np.empty(count, dtype=np.int64)
    for rows in places:
        turns[rows] = np.arange(len(rows))
    return turns


def _file(table: Table) -> Path:
    return package_path("modlamp", f"data/{table}.csv", "the peptides of modlamp", "modlamp")
