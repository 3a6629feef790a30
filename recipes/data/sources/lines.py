"""One sequence a line: characters, or the tokens of a regular expression, such as that of
SMILES.
"""

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.data.sequences import Ragged, Sequences
from recipes.data.sources.files import (
    INT,
    TABLES,
    as_ints,
    chosen_labels,
    code_points,
    column,
    identity,
    matching,
    suffix,
    table_rows,
)
from recipes.data.sources.files import text_lines as lines_of

# Schwaller et al. 2018, arXiv 1711.04810
SMILES = r"\[[^\]]+\]|Br|Cl|%\d\d|[BCNOPSFIbcnops]|[()=#\-+\\/:~@?>*$.]|\d"
"""Tokens of a molecule's SMILES string."""

RULES = {"characters": None, "smiles": SMILES, "words": r"\S+"}
"""Named rules of tokens: a regular expression, or None for single characters."""

BETWEEN = " \t"
"""Characters between the numbers of a line."""


@dataclass(frozen=True)
class Lines:
    r"""One sequence a line of text files, which may be compressed (.gz), or a row of a column of
    .csv or .tsv.

    Args:
        files: a file, a folder or a quoted pattern.
        tokens: characters, smiles, words, or a regular expression, which every line must consist
            of.
        column: column of the sequences in a .csv or .tsv file.
        labels: another column, or a file with one label on each line.
        tokenizer: a function from a line to its tokens, in place of ``tokens``.

    Raises:
        FileNotFoundError, ValueError: on loading: no such file or column; a part of a line that is
            not a token, with its file and line; missing labels.
    """

    files: str
    tokens: str = "characters"
    column: str | None = None
    labels: str | None = None
    tokenizer: Callable[[str], list[str]] | None = None

    def load(self) -> Sequences:
        texts, places, columns = self._read()
        if self.tokenizer is None and RULES.get(self.tokens, self.tokens) is None:
            ids, symbols = _characters(texts)
        else:
            ids, symbols = _tokens(texts, places, self._cutter(), self._rule())
        labels, classes = chosen_labels(self.labels, columns, len(texts))
        separator = " " if self.tokens == "words" and self.tokenizer is None else ""
        if not symbols:
            raise ValueError(f"files={self.files!r}: there is no line with a symbol")
        return Sequences(
            ids=ids,
            symbols=symbols,
            labels=labels,
            classes=classes,
            separator=separator,
            observed=True,
            notes=_notes(symbols),
        )

    def identity(self) -> dict[str, str]:
        return identity(matching(self.files), self.labels)

    def _read(
        self,
    ) -> tuple[list[str], Callable[[int], str], Callable[[str], Sequence[Any] | None]]:
        """Return the lines, a function that describes the place of one, and the further columns."""
        texts: list[str] = []
        begins: list[tuple[int, str]] = []
        rows: list[dict[str, str]] = []
        for file in matching(self.files):
            begins.append((len(texts), str(file)))
            if self.column is None:
                if suffix(file) in TABLES:
                    raise ValueError(
                        f"{file}: is a table, name the column of the sequences: column=..."
                    )
                texts += lines_of(file)
                continue
            if suffix(file) not in TABLES:
                raise ValueError(
                    f"column={self.column!r}: {file} is not a table, must be .csv or .tsv"
                )
            table = table_rows(file)
            texts += column(file, table, self.column)
            rows += table

        def place(row: int) -> str:
            begin, name = next(one for one in reversed(begins) if one[0] <= row)
            return f"{name}, {'line' if self.column is None else 'row'} {row - begin + 1}"

        def columns(name: str) -> Sequence[Any] | None:
            return as_ints([row[name] or "" for row in rows]) if rows and name in rows[0] else None

        return texts, place, columns

    def _rule(self) -> str:
        """Return the rule of the tokens, for messages."""
        if self.tokenizer is not None:
            return "the tokenizer"
        names = ", ".join(RULES)
        return f"tokens={self.tokens!r}" + (
            "" if self.tokens in RULES else f" (a regular expression, none of {names})"
        )

    def _cutter(self) -> Callable[[str], list[str]]:
        """Return the function that cuts a line into tokens."""
        if self.tokenizer is not None:
            return self.tokenizer
        rule = RULES.get(self.tokens) or self.tokens
        try:
            pattern = re.compile(rule)
        except re.error as error:
            raise ValueError(
                f"tokens={self.tokens!r}: is not a regular expression: {error}"
            ) from error
        if pattern.groups:
            raise ValueError(f"tokens={self.tokens!r}: has groups, write (?:...) for each")
        return pattern.findall


def _notes(symbols: Sequence[str]) -> tuple[str, ...]:
    """Return a remark on characters that are those of numbers between white space."""
    digits = [name for name in symbols if name.isdecimal()]
    others = set(symbols) - set(digits)
    if not digits or not others & set(BETWEEN) or not others <= {*BETWEEN, "+", "-"}:
        return ()
    return (
        "all characters are digits, signs and white space: --tokens words takes each number as a "
        "symbol",
    )


def _characters(texts: Sequence[str]) -> tuple[Ragged, tuple[str, ...]]:
    """Return the ids of the characters of each text, and the characters in their order."""
    codes, offsets = code_points(texts)
    places = np.zeros(0x110000, dtype=np.int32)
    places[codes] = 1
    ends = np.flatnonzero(places)
    places[ends] = np.arange(len(ends))
    return Ragged(places[codes], offsets), tuple(map(chr, ends.tolist()))


def _tokens(
    texts: Sequence[str], place: Callable[[int], str], cut: Callable[[str], list[str]], rule: str
) -> tuple[Ragged, tuple[str, ...]]:
    """Return the ids of the tokens of each text, and the tokens, sorted: by value if all are whole
    numbers.

    Raises:
        ValueError: a part of a text, other than white space, is in none of its tokens.
    """
    known: dict[str, int] = {}
    values = array("i")
    offsets = [0]
    for row, text in enumerate(texts):
        tokens = cut(text)
        left = len(text) - sum(map(len, tokens))
        if left and left != sum(map(str.isspace, text)) - sum(
            character.isspace() for one in tokens for character in one
        ):
            raise ValueError(
                f"{place(row)}: {_rest(text, tokens)!r} is not a token of {rule}: {text[:80]!r}"
            )
        values.extend(known.setdefault(token, len(known)) for token in tokens)
        offsets.append(len(values))
    whole = all(map(INT.fullmatch, known))
    symbols = tuple(sorted(known, key=lambda name: (int(name) if whole else 0, name)))
    order = np.empty(max(len(known), 1), dtype=np.int64)
    order[[known[symbol] for symbol in symbols]] = np.arange(len(symbols))
    return Ragged(
        order[np.frombuffer(values, dtype=np.intc)] if values else np.empty(0, int),
        np.array(offsets),
    ), symbols


def _rest(text: str, tokens: Sequence[str]) -> str:
    """Return the first character of a text, other than white space, that is in none of its
    tokens.
    """
    at = 0
    for token in tokens:
        place = text.find(token, at)
        if gap := text[at:place].strip():
            return gap[0]
        at = place + len(token)
    return text[at:].strip()[:1]
