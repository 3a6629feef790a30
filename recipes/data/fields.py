"""Fields of sequences whose positions have several alphabets: columns of a table, nodes and edges
of a graph, a picture beside its label.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int

from recipes.data.cells import NOWHERE, Cells
from recipes.data.source import STRICT

MISSING = "[missing]"
"""Symbol of a missing value."""
LISTED = 8
"""Number of symbols that a message lists."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Alphabet of some positions of a sequence, and the noise that suits it.

    Raises:
        ValueError: no symbol, one that occurs twice, or another number than that of the cells.
    """

    name: str
    symbols: tuple[str, ...]
    """Names of its V tokens, 0..V-1; the last may be ``MISSING``."""
    process: Mapping[str, Any] | str = "mdlm"
    """Process that a recipe takes where it names no other, in plain values."""
    cells: Cells | None = None
    """Numbers that the tokens, except ``MISSING``, stand for; None for names."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if not self.symbols:
            raise ValueError(f"field {self.name!r}: symbols is empty, must have at least one")
        if len(self.place_of) < len(self.symbols):
            twice = next(one for one in self.symbols if self.symbols.count(one) > 1)
            raise ValueError(f"field {self.name!r}: the symbol {twice!r} occurs twice")
        if self.cells is not None and len(self.cells) != len(self.symbols) - self.may_miss:
            raise ValueError(
                f"field {self.name!r}: has {len(self.cells)} cells, must have one for each symbol "
                f"but {MISSING!r}"
            )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Return the field of plain values, as ``dataclasses.asdict`` writes it."""
        cells = values.get("cells")
        changes = {
            "symbols": tuple(values["symbols"]),
            "cells": None if cells is None else Cells.read(cells),
        }
        return cls(**values | changes)

    @cached_property
    def place_of(self) -> dict[str, int]:
        """Token of each symbol."""
        return {symbol: token for token, symbol in enumerate(self.symbols)}

    @property
    def may_miss(self) -> bool:
        """Whether a value may be missing."""
        return self.symbols[-1] == MISSING

    def token(self, text: str) -> int:
        """Return the token of a value.

        Args:
            text: a number, a symbol, or ``MISSING``.

        Raises:
            ValueError: no value of the field, with the nearest.
        """
        if text in self.place_of and (self.cells is None or text == MISSING):
            return self.place_of[text]
        if text == MISSING:
            raise ValueError(f"{self.name}={text}: no value of the training data is missing")
        if self.cells is None:
            near = get_close_matches(text, self.symbols, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"must be one of {self._listed()}"
            raise ValueError(f"{self.name}={text}: no such value of the field; {hint}")
        try:
            number = float(text)
        except ValueError as error:
            raise ValueError(f"{self.name}={text}: must be a number") from error
        if not math.isfinite(number):
            raise ValueError(f"{self.name}={text}: must be a finite number, or {MISSING}")
        token = int(self.cells.tokens(np.array([number]))[0])
        if token == NOWHERE:
            low, high = self.cells.quantiles[0][0], self.cells.quantiles[-1][-1]
            others = f"from {self.cells.text(low)} to {self.cells.text(high)}"
            if low <= number <= high:
                ends = [end for cell in self.cells.quantiles for end in cell]
                below = max(end for end in ends if end < number)
                above = min(end for end in ends if end > number)
                others = f"{others}, next {self.cells.text(below)} and {self.cells.text(above)}"
            raise ValueError(
                f"{self.name}={text}: no such value of the field, whose values are {others}"
            )
        return token

    def values(
        self, tokens: Int[np.ndarray, " N"], chance: Float[np.ndarray, " N"]
    ) -> list[str | None]:
        """Return the values of tokens as texts, None for missing ones.

        Args:
            tokens: tokens of the field.
            chance: uniform draws in [0, 1), which determine the number in a cell.
        """
        there = tokens < len(self.symbols) - self.may_miss
        result: list[str | None] = [None] * len(tokens)
        if self.cells is None:
            texts = [self.symbols[token] for token in tokens[there]]
        else:
            texts = list(map(self.cells.text, self.cells.draw(tokens[there], chance[there])))
        for place, text in zip(np.flatnonzero(there), texts, strict=True):
            result[place] = text
        return result

    def _listed(self) -> str:
        shown = ", ".join(map(repr, self.symbols[:LISTED]))
        return shown + (f" and {len(self.symbols) - LISTED} more" * (len(self.symbols) > LISTED))


def check_positions(fields: Sequence[Field], positions: Sequence[str]) -> None:
    """Raise ValueError for a position without a field, a field without positions, or two fields of
    one name.
    """
    names = [one.name for one in fields]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ValueError(f"fields: two have the name {name!r}, names must be distinct")
        if name not in positions:
            raise ValueError(f"field {name!r} has no position, must have at least one")
    for place, name in enumerate(positions):
        if name not in names:
            listed = ", ".join(map(repr, names))
            raise ValueError(f"positions[{place}] is {name!r}, must be a field: {listed}")
