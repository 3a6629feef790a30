"""Molecules of MOSES as SMILES, from the package ``molsets``."""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from recipes.data.packaged import check_limit, digests, package_path
from recipes.data.sequences import Ragged, Sequences

Split = Literal["train", "test", "test_scaffolds"]
Tokens = Literal["characters", "smiles"]

_COMMON = (
    "#",
    "(",
    ")",
    "-",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "=",
    "C",
    "F",
    "N",
    "O",
    "S",
    "c",
    "n",
    "o",
    "s",
)
ALPHABETS: dict[Tokens, tuple[str, ...]] = {
    "characters": tuple(sorted((*_COMMON, "B", "H", "[", "]", "l", "r"))),
    "smiles": tuple(sorted((*_COMMON, "Br", "Cl", "[H]", "[nH]"))),
}
"""Tokens that occur in the three splits: the same alphabet for each of them, and for every
limit.
"""


@dataclass(frozen=True, kw_only=True)
class Molecules:
    """MOSES (Polykovskiy et al. 2020): 1,936,962 drug-like molecules of ZINC in three splits, one
    SMILES each.

    Args:
        split: 1,584,663 for training, 176,074 for tests, 176,225 for tests with scaffolds that
            training lacks.
        tokens: unit of a symbol: a character, or a token of SMILES such as Cl or [nH].
        limit: number of molecules, the first ones of the file; all by default.

    Raises:
        ValueError: an unknown split or kind of tokens, a limit below 1.
    """

    split: Split = "train"
    tokens: Tokens = "characters"
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.split not in ("train", "test", "test_scaffolds"):
            raise ValueError(f"split={self.split!r}: must be train, test or test_scaffolds")
        if self.tokens not in ALPHABETS:
            raise ValueError(f"tokens={self.tokens!r}: must be characters or smiles")
        check_limit(self.limit)

    def load(self) -> Sequences:
        """Return the molecules in the order of the file.

        Raises:
            ModuleNotFoundError: the package is not installed.
        """
        alphabet = ALPHABETS[self.tokens]
        return Sequences(ids=encode(self.smiles(), alphabet), symbols=alphabet)

    def smiles(self) -> list[str]:
        """Return the molecules as strings, e.g. as the reference of novelty.

        Raises:
            ModuleNotFoundError: the package is not installed.
        """
        with gzip.open(_file(self.split), "rt", encoding="ascii") as content:
            title, *lines = content.read().splitlines()
        if title != "SMILES":
            raise ValueError(f"{_file(self.split)} has the column {title!r}, must have SMILES")
        return lines[: self.limit]

    def identity(self) -> dict[str, str]:
        """Return the hash of the split's file, by its name."""
        return digests([_file(self.split)])


def encode(smiles: list[str], alphabet: tuple[str, ...]) -> Ragged:
    """Return the ids of the tokens of each string.

    Tokens of several characters are those of ``recipes.data.sources.lines.SMILES``; each must be in
    the alphabet.

    Args:
        smiles: strings without line breaks.
        alphabet: tokens, of one character or more.

    Raises:
        ValueError: a string with a token that is not in the alphabet, with its number.

    Example:
        >>> encode(["CCl"], ("C", "Cl"))[0].tolist()
        [0, 1]
    """
    text = "\n".join([*smiles, ""]) if smiles else ""
    # one private character for each token of several: brackets first, as they may contain the
    # others
    ids = {token: number for number, token in enumerate(alphabet)}
    for number, token in enumerate(
        sorted(alphabet, key=lambda token: (token[0] != "[", -len(token)))
    ):
        if len(token) > 1:
            private = chr(0xE000 + number)
            text = text.replace(token, private)
            ids[private] = ids[token]
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    table = np.full(
        int(max([ord("\n"), *codes.max(initial=0, keepdims=True)])) + 1, -1, dtype=np.int16
    )
    for token, number in ids.items():
        if len(token) == 1 and ord(token) < len(table):
            table[ord(token)] = number
    ends = np.flatnonzero(codes == ord("\n"))
    lengths = np.diff(ends, prepend=-1) - 1
    codes = np.delete(codes, ends)
    encoded = table[codes]
    if (bad := np.flatnonzero(encoded < 0)).size:
        row = int(np.searchsorted(np.cumsum(lengths), bad[0], side="right"))
        raise ValueError(
            f"molecule {row}, {smiles[row]!r}: {chr(codes[bad[0]])!r} is not in the alphabet"
        )
    return Ragged(encoded, np.concatenate([[0], np.cumsum(lengths)]))


def _file(split: Split) -> Path:
    # its dependencies are those of 2020 and cannot be built today; the data need none of them
    return package_path(
        "moses", f"dataset/data/{split}.csv.gz", "the molecules of MOSES", "--no-deps molsets"
    )
