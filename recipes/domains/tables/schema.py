"""Schema of a table: the kind, the alphabet and the noise of each column."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from jaxtyping import Float, Int

from recipes.data.cells import Cells
from recipes.data.fields import MISSING, Field
from recipes.data.source import STRICT
from recipes.data.yaml_text import load_yaml
from recipes.domains.tables.noise import NAMED
from recipes.domains.tables.reading import Column

BINS = 64
"""Number of cells of a column of numbers."""
EXACT = 256
"""Largest number of distinct integers that are a token each without being asked."""
MOST = 100_000
"""Largest number of categories of a column."""
DECIMALS = 8
"""Largest number of decimals that are found."""
NOTATION = re.compile(
    r"[+-]?[$€£]?\s?(\d{1,3}([,'\s]\d{3})+(\.\d+)?|\d*,\d+|\d+(\.\d+)?)\s?[%$€£]?"
)
"""Numbers with a decimal comma, groups of digits, a currency or per cent."""


@dataclass(frozen=True, kw_only=True)
class ColumnSchema:
    """Kind, alphabet and noise of one column.

    Raises:
        ValueError: keys that do not fit the kind, a number of bins below 2, no such process.
    """

    kind: Literal["category", "number", "ignore"]
    """Category: every value is a token. Number: cells of numbers. Ignore: the column is left
    out."""
    values: tuple[str, ...] | None = None
    """Categories in their order; None: those of the data, sorted."""
    ordered: bool = False
    """Whether categories have an order, that of ``values``."""
    bins: int | Literal["exact"] | None = None
    """Number of cells with about equal numbers of rows each; "exact": every number is a token.

    None: exact for up to 256 integers, else 64."""
    process: dict[str, Any] | str = "masks"
    """Name of the noise: masks, uniform, blur or tree (intervals); or the values of a process."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        category = self.kind == "category"
        if self.values is not None and not category:
            raise ValueError(f"values: only for kind category, not {self.kind}")
        if self.ordered and (not category or self.values is None):
            raise ValueError("ordered: only for kind category, with values in their order")
        if self.bins is not None and self.kind != "number":
            raise ValueError(f"bins: only for kind number, not {self.kind}")
        if isinstance(self.bins, int) and self.bins < 2:
            raise ValueError(f"bins={self.bins}: must be at least 2, or exact")
        if self.values is not None and MISSING in self.values:
            raise ValueError(f"values: {MISSING!r} is the name of a missing value")
        if isinstance(self.process, str) and self.process not in NAMED:
            raise ValueError(
                f"process={self.process!r}: must be one of {', '.join(NAMED)}, or the values of a "
                "process, such as {kind: gidd, p_uniform: 0.1}"
            )
        if self.process in ("blur", "tree") and category and not self.ordered:
            raise ValueError(
                f"process={self.process!r}: needs an order, which categories have with "
                "ordered: true and values"
            )


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Columns of a table by name, in the order of their positions."""

    columns: Mapping[str, ColumnSchema]
    missing: tuple[str, ...] = ()
    """Texts of missing values, besides empty fields, NA and NaN."""

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if not any(one.kind != "ignore" for one in self.columns.values()):
            raise ValueError("columns: must have one that is not ignored")

    @classmethod
    def read(cls, path: str) -> "Schema":
        """Read a YAML or JSON file.

        Raises:
            FileNotFoundError, ValueError: no such file; no YAML; a wrong key or value, by its
                place.
        """
        from pydantic import TypeAdapter, ValidationError

        file = schema_file(path)
        try:
            values = load_yaml(file.read_text(encoding="utf-8"))
            return TypeAdapter(cls).validate_python(values)
        except yaml.YAMLError as error:
            raise ValueError(f"schema={path!r}: is not YAML: {error}") from error
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, one['loc']))}: {_fault(one)}" for one in error.errors()
            )
            raise ValueError(f"schema={path!r}: {faults}") from error

    def text(self) -> str:
        """Return the schema as YAML, one line for each column."""
        lines = ["columns:"]
        for name, column in self.columns.items():
            values = {
                key: value for key, value in vars(column).items() if value not in (None, False)
            }
            written = json.dumps(values, ensure_ascii=False, default=list)
            lines.append(f"  {json.dumps(name, ensure_ascii=False)}: {written}")
        return "\n".join([*lines, f"missing: {json.dumps(list(self.missing))}", ""])


def _fault(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a value of a schema."""
    match error["type"]:
        case "string_type":
            return f"{error['input']!r} is no text for YAML, write it in quotes"
        case "dataclass_type":
            return f"is {error['input']!r}, must have keys, such as {{kind: category}}"
    return str(error["msg"]).removeprefix("Value error, ")


def schema_file(path: str) -> Path:
    """Return the path of a schema, or raise FileNotFoundError."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"schema={path!r}: there is no such file")
    return file


def propose(columns: Mapping[str, Column], missing: Sequence[str] = ()) -> Schema:
    """Return a schema for columns: numbers where all values are, categories elsewhere.

    Digits of one length are categories if some begin with 0, as postal codes do. Columns with a
    ``reason_to_ignore`` are ignored.

    Raises:
        ValueError: a column of which some values are numbers and others are not, of integers that
            a float64 rounds, or of numbers in another notation, such as a decimal comma.
    """
    return Schema(
        columns={name: _propose(column) for name, column in columns.items()},
        missing=tuple(missing),
    )


def _propose(column: Column) -> ColumnSchema:
    if reason_to_ignore(column):
        return ColumnSchema(kind="ignore")
    try:
        if _numeric(column):
            return ColumnSchema(kind="number", bins=_bins(column.numbers()[~column.missing]))
        _check_notation(column)
    except ValueError as error:
        raise ValueError(
            f"{error}. State what the column is in a schema: kind category or ignore, or the "
            "texts of missing values (missing: [...])"
        ) from error
    return ColumnSchema(kind="category")


def reason_to_ignore(column: Column) -> str:
    """Return why a column is proposed to be ignored, "" if it is not.

    It has no value, or in more than 256 rows it numbers them or has another text in each.
    """
    there = int((~column.missing).sum())
    if not there:
        return "has no value"
    if there > EXACT and column.numbers_rows:
        return "numbers the rows"
    if there > EXACT and not _numeric(column) and len(column.categories) == there:
        return "has another text in each row"
    return ""


def _numeric(column: Column) -> bool:
    return column.share_of_numbers > 0 and not _codes(column)


def _check_notation(column: Column) -> None:
    """Raise ValueError if all texts are numbers in another notation."""
    texts = list(column.categories)
    if all(map(NOTATION.fullmatch, texts)) and not _codes(column):
        raise ValueError(
            f"{column.place}: the values, such as {texts[0][:20]!r}, look like numbers, which must "
            "be written as 1234.5, without groups of digits, units or decimal commas"
        )


def _codes(column: Column) -> bool:
    """Return whether values are digits of one length, some with a leading zero."""
    texts = column.categories
    return (
        all(text.isdecimal() for text in texts)
        and len({len(text) for text in texts}) == 1
        and any(text.startswith("0") and len(text) > 1 for text in texts)
    )


def _bins(numbers: Float[np.ndarray, " N"]) -> int | Literal["exact"]:
    distinct = np.unique(numbers)
    whole = bool((distinct == np.round(distinct)).all())
    return "exact" if whole and len(distinct) <= EXACT else BINS


def fit(name: str, column: Column, schema: ColumnSchema) -> Field:
    """Return the field of a column: its alphabet from the data, and its noise.

    Raises:
        ValueError: no value, too many categories, values that do not fit the schema.
    """
    missing = bool(column.missing.any())
    if bool(column.missing.all()):
        raise ValueError(f"{column.place}: all values are missing; state kind ignore in a schema")
    cells = None
    if schema.kind == "number":
        numbers = column.numbers()[~column.missing]
        bins = _bins(numbers) if schema.bins is None else schema.bins
        cells = Cells.fit(numbers, None if bins == "exact" else bins, _decimals(numbers))
        symbols = cells.names
    else:
        texts = column.categories.keys()
        if MISSING in texts:
            raise ValueError(f"{column.place}: {MISSING!r} is the name of a missing value")
        symbols = tuple(sorted(texts)) if schema.values is None else schema.values
        if unknown := sorted(texts - {*symbols}):
            raise ValueError(
                f"{column.place}: {unknown[0]!r} is not one of the values of the schema, "
                f"{', '.join(map(repr, symbols[:8]))}"
            )
    if len(symbols) > MOST:
        raise ValueError(
            f"{column.place}: has {len(symbols):,} values, must have at most {MOST:,}; bins (of "
            "numbers) or kind ignore reduce them"
        )
    noise = schema.process
    process = noise if isinstance(noise, Mapping) else NAMED[noise](len(symbols), missing)
    return Field(
        name=name,
        symbols=(*symbols, *[MISSING] * missing),
        process=process if isinstance(process, str) else dict(process),
        cells=cells,
    )


def tokens(field: Field, column: Column, absent: int | None = None) -> Int[np.ndarray, " N"]:
    """Return the token of each value of a column.

    Args:
        field: the alphabet.
        column: the values.
        absent: token of missing values; by default that of ``MISSING``.

    Raises:
        ValueError: a value that the field lacks, with its row.
    """
    if field.cells is None:
        names = ("" if text is None else text for text in column.texts)
        result = np.array([field.place_of.get(name, -1) for name in names])
    else:
        result = field.cells.tokens(np.nan_to_num(column.numbers()))
    missing = field.place_of.get(MISSING, -1) if absent is None else absent
    result = np.where(column.missing, missing, result)
    if len(bad := np.flatnonzero(result < 0)):
        row = int(bad[0])
        text = column.texts[row]
        try:
            field.token(MISSING if text is None else text)
        except ValueError as error:
            raise ValueError(f"{column.place}, row {row + 1}: {error}") from error
    return result


def _decimals(numbers: Float[np.ndarray, " N"]) -> int | None:
    """Return the smallest number of decimals that writes all numbers, None if there is none."""
    distinct = np.unique(numbers)
    for count in range(DECIMALS + 1):
        if bool((np.round(distinct, count) == distinct).all()):
            return count
    return None
