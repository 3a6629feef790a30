"""Proteins, DNA and RNA in FASTA files."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from recipes.data.sequences import Ragged, Sequences, index_labels
from recipes.data.sources.files import as_ints, code_points, identity, matching, read_labels
from recipes.data.sources.files import text_lines as lines_of

SUFFIXES = (".fasta", ".fa", ".faa", ".fna", ".ffn", ".frn")

LETTERS = {"protein": ("ACDEFGHIKLMNPQRSTVWY", "X"), "dna": ("ACGT", "N"), "rna": ("ACGU", "N")}
"""Letters of each alphabet, and the letter for an unknown one."""

NUCLEOTIDES = 0.95
"""Share of letters of DNA or RNA from which on sequences are not proteins, where it is about a
third.
"""


@dataclass(frozen=True)
class Fasta:
    """Proteins, DNA or RNA: the records of FASTA files, which may be compressed (.gz).

    Args:
        files: a file, a folder or a quoted pattern.
        alphabet: protein, dna or rna; letters of DNA or RNA are not proteins.
        unknown: largest accepted share of letters in lower case or outside of the alphabet: the
            first are read as capitals, the others become X (proteins) or N, then a symbol too.
        labels: a regular expression with one group, the label in a record's header; or a file with
            one on each line.

    Raises:
        FileNotFoundError, ValueError: on loading: no such file; sequence in front of the first
            header; a larger share of such letters, with their numbers; DNA or RNA read as proteins;
            a header without a label.
    """

    files: str
    alphabet: Literal["protein", "dna", "rna"] = "protein"
    unknown: float = 0.01
    labels: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.unknown <= 1:
            raise ValueError(f"unknown={self.unknown}: must lie in [0, 1]")

    def load(self) -> Sequences:
        headers, texts = self._records()
        letters, other = LETTERS[self.alphabet]
        counts = Counter("".join(texts))
        lower = {letter: count for letter, count in counts.items() if letter.islower()}
        strange = {
            letter: count
            for letter, count in counts.items()
            if letter.upper() not in letters and letter.upper() != other
        }
        odd = lower | strange
        total = max(counts.total(), 1)
        if self.alphabet == "protein" and (kind := _nucleotides(counts)):
            raise ValueError(
                f"files={self.files!r}: alphabet='protein', but the letters are those of {kind}: "
                f"{_list_letters(counts)}; read them with --alphabet {kind}"
            )
        if sum(odd.values()) > self.unknown * total:
            raise ValueError(
                f"files={self.files!r}: {sum(odd.values()):,} letters are in lower case or no "
                "letters of "
                f"{self.alphabet} ({sum(odd.values()) / total:.2%}, at most "
                f"unknown={self.unknown:g} are accepted): "
                f"{_list_letters(odd)}"
            )
        used = {letter.upper() for letter in counts}
        symbols = tuple(letters) + ((other,) if used - set(letters) else ())
        places = np.full(0x110000, len(symbols) - 1, dtype=np.int16)
        for number, letter in enumerate(symbols):
            places[[ord(letter), ord(letter.lower())]] = number
        codes, offsets = code_points(texts)
        labels, classes = self._labels(headers)
        return Sequences(
            ids=Ragged(places[codes], offsets),
            symbols=symbols,
            labels=labels,
            classes=classes,
            notes=_notes(lower, strange, other),
        )

    def identity(self) -> dict[str, str]:
        return identity(matching(self.files, SUFFIXES), self.labels)

    def _records(self) -> tuple[list[str], list[str]]:
        """Return the headers, and the sequence of each."""
        headers: list[str] = []
        texts: list[list[str]] = []
        for file in matching(self.files, SUFFIXES):
            first = len(headers)
            for number, line in enumerate(lines_of(file), start=1):
                if line.startswith(">"):
                    headers.append(line[1:].strip())
                    texts.append([])
                elif line.strip() and len(headers) == first:
                    raise ValueError(
                        f"{file}, line {number}: sequence before the first header, which is a line "
                        "with >"
                    )
                elif line.strip():
                    texts[-1].append("".join(line.split()))
        if not headers:
            raise ValueError(
                f"files={self.files!r}: must contain a record, a header with > and its sequence"
            )
        return headers, ["".join(pieces).removesuffix("*") for pieces in texts]

    def _labels(self, headers: list[str]) -> tuple[np.ndarray | None, tuple[str, ...]]:
        if self.labels is None:
            return None, ()
        if Path(self.labels).is_file():
            return read_labels(self.labels, len(headers))
        try:
            pattern = re.compile(self.labels)
        except re.error as error:
            raise ValueError(
                f"labels={self.labels!r}: neither a file nor a regular expression: {error}"
            ) from error
        if pattern.groups != 1:
            raise ValueError(
                f"labels={self.labels!r}: must be a file, or a regular expression with one group "
                "(...)"
            )
        matches = [pattern.search(header) for header in headers]
        return index_labels(
            as_ints(["" if one is None else one[1] or "" for one in matches]),
            f"labels={self.labels!r}",
        )


def _list_letters(counts: Mapping[str, int]) -> str:
    """Return letters with their numbers, the most frequent first."""
    return ", ".join(
        f"{letter!r} ({count:,})"
        for letter, count in sorted(counts.items(), key=lambda one: -one[1])
    )


def _nucleotides(counts: Mapping[str, int]) -> str | None:
    """Return "dna" or "rna" if all its letters occur and make up almost all of the sequences, else
    None.
    """
    capitals = Counter()
    for letter, count in counts.items():
        capitals[letter.upper()] += count
    for kind in ("dna", "rna"):
        letters, other = LETTERS[kind]
        share = sum(capitals[letter] for letter in letters + other)
        if share >= NUCLEOTIDES * capitals.total() and all(capitals[letter] for letter in letters):
            return kind
    return None


def _notes(lower: dict[str, int], strange: dict[str, int], other: str) -> tuple[str, ...]:
    notes = []
    if lower:
        notes.append(f"{sum(lower.values()):,} letters in lower case, read as capitals")
    if strange:
        notes.append(
            f"{sum(strange.values()):,} unknown letters became {other}: "
            f"{', '.join(map(repr, strange))}"
        )
    return tuple(notes)
