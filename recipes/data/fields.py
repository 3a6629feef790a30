"""Fields of sequences whose positions have several alphabets: columns of a table, nodes and edges
of a graph, a picture beside its label.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from recipes.data.source import STRICT


@dataclass(frozen=True, kw_only=True)
class Field:
    """Alphabet of some positions of a sequence, and the noise that suits it.

    Raises:
        ValueError: no symbol, or one that occurs twice.
    """

    name: str
    symbols: tuple[str, ...]
    """Names of its V tokens, 0..V-1."""
    process: Mapping[str, Any] | str = "mdlm"
    """Process that a recipe takes where it names no other, in plain values."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the source writes its tokens by, in plain values."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if not self.symbols:
            raise ValueError(f"field {self.name!r}: symbols is empty, must have at least one")
        seen = set[str]()
        for symbol in self.symbols:
            if symbol in seen:
                raise ValueError(f"field {self.name!r}: the symbol {symbol!r} occurs twice")
            seen.add(symbol)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Return the field of plain values, as ``dataclasses.asdict`` writes it."""
        return cls(**values | {"symbols": tuple(values["symbols"])})


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
