"""Similarity matrices of symbols, from a file or by name, and the vectors whose inner products they
are.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.hierarchies import blosum62

_ACIDS = "ARNDCQEGHILKMFPSTWYV"
"""Amino acids in the order of ``blosum62``."""
LISTED = 5
"""Number of symbols that an error message lists."""


@dataclass(frozen=True)
class Similarity:
    """Symmetric similarity of symbols.

    Raises:
        ValueError: not square, NaN or infinite, not symmetric, symbols that are not distinct or not
            one per row.
    """

    source: str
    """File or name, for messages."""
    matrix: Float64[np.ndarray, "n n"]
    symbols: tuple[str, ...] = ()
    """Symbol of each row; () for a matrix whose rows are in the order of the vocabulary."""

    def __post_init__(self) -> None:
        shape = self.matrix.shape
        if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
            raise ValueError(f"similarity={self.source!r}: has shape {shape}, must be square")
        if self.symbols and len(self.symbols) != shape[0]:
            raise ValueError(
                f"similarity={self.source!r}: has {len(self.symbols)} symbols for {shape[0]} rows"
            )
        if twice := [name for n, name in enumerate(self.symbols) if name in self.symbols[:n]]:
            raise ValueError(f"similarity={self.source!r}: the symbol {twice[0]!r} occurs twice")
        for fault, wrong in (
            ("must be a finite number", ~np.isfinite(self.matrix)),
            (
                "must be symmetric",
                ~np.isclose(self.matrix, self.matrix.T, rtol=1e-6, atol=1e-9, equal_nan=True),
            ),
        ):
            if wrong.any():
                i, j = (int(place[0]) for place in np.nonzero(wrong))
                first, second = (self.symbols[k] if self.symbols else k for k in (i, j))
                other = (
                    f" and {self.matrix[j, i]:g} in the other order"
                    if fault == "must be symmetric"
                    else ""
                )
                raise ValueError(
                    f"similarity={self.source!r}: that of {first!r} and {second!r} is "
                    f"{self.matrix[i, j]:g}{other}, "
                    f"{fault}"
                )

    def of(
        self, vocabulary: Mapping[str, int], without: Sequence[int] = ()
    ) -> Float64[np.ndarray, "V V"]:
        """Return the matrix in the order of a vocabulary; rows of NaN for ids that are not symbols.

        Args:
            vocabulary: token -> id, 0..V-1.
            without: ids that are not symbols, such as end and padding, which the matrix may lack.

        Raises:
            ValueError: another size, or a token that the matrix lacks.
        """
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        wanted = [token for index, token in enumerate(tokens) if index not in without]
        symbols = self.symbols
        if not symbols:
            if len(self.matrix) not in (len(tokens), len(wanted)):
                special = (
                    f", or {len(wanted)} without end and padding"
                    if len(wanted) < len(tokens)
                    else ""
                )
                raise ValueError(
                    f"similarity={self.source!r}: has {len(self.matrix)} rows, the vocabulary "
                    f"{len(tokens)} "
                    f"symbols{special}: they must be equal"
                )
            symbols = tuple(tokens if len(self.matrix) == len(tokens) else wanted)
        places = {symbol: place for place, symbol in enumerate(symbols)}
        if missing := [token for token in wanted if token not in places]:
            raise ValueError(
                f"similarity={self.source!r}: has {len(symbols)} symbols, but not {len(missing)} "
                "of the vocabulary's "
                f"{len(wanted)}: {', '.join(map(repr, missing[:LISTED]))}"
            )
        similarities = np.full((len(tokens), len(tokens)), np.nan)
        here = [index for index, token in enumerate(tokens) if token in places]
        rows = [places[tokens[index]] for index in here]
        similarities[np.ix_(here, here)] = self.matrix[np.ix_(rows, rows)]
        return similarities


def read_similarity(source: str) -> Similarity:
    """Read a similarity: ``blosum62``, or a .csv, .tsv or .npy file.

    The first row of a .csv or .tsv file holds the symbols; a first column may repeat them. A .npy
    file is an array (V, V) in the order of the vocabulary.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file of another kind, or an entry that is not a number, with its place; as
            ``Similarity``.
    """
    if source in NAMED:
        return NAMED[source]()
    path = Path(source)
    read = READERS.get(path.suffix.lower())
    if read is None:
        raise ValueError(f"similarity={source!r}: must be {', '.join((*NAMED, *READERS))}")
    if not path.is_file():
        raise FileNotFoundError(f"similarity={source!r}: there is no such file")
    return read(path)


def similarity_vectors(matrix: Float64[np.ndarray, "V V"]) -> tuple[Float[Tensor, "V dim"], float]:
    """Return vectors whose inner products are the similarity, and the share of it that no vectors
    have.

    They are the eigenvectors times the square roots of positive eigenvalues, which is the nearest
    such matrix. Rows of NaN give zeros.

    Raises:
        ValueError: no positive eigenvalue.
    """
    there = ~np.isnan(matrix).all(1)
    values, vectors = np.linalg.eigh(matrix[np.ix_(there, there)])
    large = values > 1e-9 * max(float(np.abs(values).max()), 1e-300)
    if not large.any():
        raise ValueError("similarity: has no positive eigenvalue; of a distance take the negative")
    coordinates = np.zeros((len(matrix), int(large.sum())))
    coordinates[there] = vectors[:, large] * np.sqrt(values[large])
    left_out = float(np.abs(values[~large]).sum() / np.abs(values).sum())
    return torch.from_numpy(coordinates.astype(np.float32)), left_out


def _table(path: Path, delimiter: str) -> Similarity:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file, delimiter=delimiter) if row]
    if not rows:
        raise ValueError(f"similarity={str(path)!r}: is empty")
    header, *body = rows
    named = not header[0].strip() or [row[0] for row in body] == header[1:]
    symbols = tuple(header[1:] if named else header)
    matrix = np.empty((len(body), len(symbols)))
    for number, row in enumerate(body):
        place = f"similarity={str(path)!r}: row {number + 1}"
        if len(row) != len(header):
            raise ValueError(f"{place} has {len(row)} entries, the first {len(header)}")
        if named and row[0] != symbols[number]:
            raise ValueError(
                f"{place} is of {row[0]!r}, must be of {symbols[number]!r} as the column"
            )
        for column, entry in enumerate(row[named:]):
            try:
                matrix[number, column] = float(entry)
            except ValueError:
                raise ValueError(
                    f"{place}, {symbols[column]!r} is {entry!r}, must be a number"
                ) from None
    return Similarity(str(path), matrix, symbols)


def _array(path: Path) -> Similarity:
    array = np.load(path, allow_pickle=False)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"similarity={str(path)!r}: is of {array.dtype}, must be of numbers")
    return Similarity(str(path), array.astype(np.float64))


NAMED: dict[str, Callable[[], Similarity]] = {
    "blosum62": lambda: Similarity("blosum62", blosum62(_ACIDS).numpy(), tuple(_ACIDS)),
}
"""Similarities by name."""

READERS: dict[str, Callable[[Path], Similarity]] = {
    ".csv": lambda path: _table(path, ","),
    ".tsv": lambda path: _table(path, "\t"),
    ".npy": _array,
}
"""Reader of a file, by its suffix."""
