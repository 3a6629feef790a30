"""Sequences whose positions belong to fields, each with its own alphabet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Int

from recipes.data.fields import Field, check_positions
from recipes.data.layout import Layout
from recipes.data.sequences import Sequences, number_symbols


@dataclass(frozen=True, kw_only=True)
class Fielded(Sequences):
    """Sequences of one length L whose ids are those of each position's own alphabet.

    A source returns them by ``Fielded.of``. The names of ``symbols`` are numbers, as many as the
    largest alphabet has.

    Raises:
        ValueError: an id outside of the alphabet of its position, with row and field; as
            ``check_positions`` and ``Sequences``.
    """

    fields: tuple[Field, ...]
    positions: tuple[str, ...]
    """Name of the field of each position, (L,)."""
    names: tuple[str, ...] = ()
    """Name of each position, (L,), by which users give its value; by default that of its field."""
    present_from: tuple[int, ...] = ()
    """Least token of the first position with which each position is present, (L,); by default all
    are.
    """
    recipe: str = "table columns"

    def __post_init__(self) -> None:
        check_positions(self.fields, self.positions)
        super().__post_init__()
        ids = self.ragged.values.reshape(-1, len(self.positions))
        sizes = {one.name: len(one.symbols) for one in self.fields}
        limits = np.array([sizes[name] for name in self.positions])
        wrong = np.argwhere(ids >= limits)
        if len(wrong):
            row, place = wrong[0].tolist()
            name = self.positions[place]
            raise ValueError(
                f"ids: row {row} holds id {ids[row, place]} in field {name!r}, must be below "
                f"{sizes[name]}, the size of its alphabet"
            )

    @classmethod
    def of(
        cls,
        ids: Int[np.ndarray, "N L"],
        fields: Sequence[Field],
        positions: Sequence[str],
        **others: Any,
    ) -> Self:
        """Return the sequences.

        Args:
            ids: those of each position's alphabet.
            fields: the alphabets.
            positions: name of the field of each position, (L,).
            others: further fields of the class.
        """
        width = max((len(one.symbols) for one in fields), default=1)
        return cls(
            ids=ids,
            symbols=number_symbols(width),
            shape=(len(positions),),
            separator=" ",
            fields=tuple(fields),
            positions=tuple(positions),
            **others,
        )

    def make_layout(self, kind: str, ends: bool, lengths: Mapping[int, int]) -> Layout:
        layout = super().make_layout(kind, ends, lengths)
        return replace(
            layout,
            fields=self.fields,
            positions=self.positions,
            names=self.names,
            present_from=self.present_from,
            contexts=tuple(self._contexts()),
        )

    def _contexts(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield the given tokens at the front, as many as all sequences have, and their number."""
        lead = 0 if self.given is None else int(np.stack(list(self.given)).argmin(1).min())
        if not lead:
            return
        ids = self.ragged.values.reshape(-1, len(self.positions))[:, :lead]
        rows, counts = np.unique(ids, axis=0, return_counts=True)
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            yield tuple(row), count

    def match(self, other: Sequences, name: str) -> Sequences:
        """Return the sequences, which have the fields of ``other``.

        Raises:
            ValueError: other fields, or another order of them.
        """
        alike = (
            isinstance(other, Fielded)
            and self.fields == other.fields
            and self.positions == other.positions
        )
        if not alike:
            raise ValueError(f"{name}: has other fields than train, must have the same")
        # symbols that train lacks need no remark: the source states the alphabets
        return replace(super().match(other, name), notes=self.notes)
