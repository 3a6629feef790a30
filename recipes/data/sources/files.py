"""Files of sources: names, hashes, text, columns and labels."""

import csv
import glob
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from recipes.data.sequences import index_labels
from recipes.data.source import Hub, Source, hashes, matches, part

TABLES = {".csv": ",", ".tsv": "\t"}
"""Separator of the columns of a table, by suffix."""

SUFFIX = re.compile(r"\.[A-Za-z]")
INT = re.compile(r"[+-]?\d+")


def suffix(file: Path) -> str:
    """Return the suffix of a file without compression: .txt of x.txt.gz."""
    return (Path(file.stem).suffix if file.suffix == ".gz" else file.suffix).lower()


def matching(path: str, suffixes: Sequence[str] = ()) -> list[Path]:
    """Return the files of a path, a folder or a pattern, sorted.

    Args:
        path: a file, a folder, whose files of these suffixes are taken, or a pattern.
        suffixes: accepted suffixes; any if empty.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file of another suffix.
    """
    kinds = f" {', '.join(suffixes)}" if suffixes else ""
    files = matches(path)
    if suffixes and Path(path).is_dir():
        files = [file for file in files if suffix(file) in suffixes]
    if not files:
        raise FileNotFoundError(f"files={path!r}: there is no{kinds} file")
    for file in files:
        if suffixes and suffix(file) not in suffixes:
            raise ValueError(f"{file}: of a kind that cannot be read, must be one of{kinds}")
    return files


def identity(files: Sequence[Path], labels: str | None) -> dict[str, str]:
    """Return hashes of files, and of the file of labels if labels are a file."""
    return hashes(
        [*files, *([Path(labels)] if labels is not None and Path(labels).is_file() else [])]
    )


def on_hub(path: str) -> bool:
    """Return whether a path is not a file here but can be the name of a data set on the hub."""
    named_file = SUFFIX.match(
        Path(path).suffix
    )  # and not the version of a data set, as in "name-v1.0"
    return not Path(path).exists() and not glob.has_magic(path) and not named_file


def check_split(split: str, path: str) -> None:
    """Raise ValueError for a split of local files other than train, which are all of them."""
    if split != "train":
        raise ValueError(
            f"split={split!r}: {path} has the one split train; only data sets of the hub have "
            "others and slices, so name other files"
        )


@dataclass(frozen=True)
class Table:
    """Columns of a data set of the Hugging Face hub."""

    path: str
    split: str

    def read(self) -> Any:
        """Return the split, or its slice."""
        source = Source(path=self.path, split=self.split)
        dataset = Hub().load(source, None)
        return dataset.select(part(source, len(dataset)))

    def identity(self) -> dict[str, str]:
        """Return the commit of the data set."""
        return Hub().identity(Source(path=self.path, split=self.split))


def text_lines(file: Path) -> Iterator[str]:
    """Yield the lines of a text file, which may be compressed by gzip, without their ends and a
    byte order mark.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        with (gzip.open if file.suffix == ".gz" else open)(
            file, "rt", encoding="utf-8-sig", newline=None
        ) as content:
            for line in content:
                yield line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} is not UTF-8 at byte {error.start}: convert it, e.g. with iconv"
        ) from error


def code_points(texts: Sequence[str]) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, " n"]]:
    """Return the code point of every character of the texts, one text behind the other, and where
    each begins.
    """
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
    return codes, np.concatenate([[0], lengths.cumsum()])


def table_rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a table with a header, .csv or .tsv."""
    lines = (line + "\n" for line in text_lines(file))  # a quoted field may hold several lines
    return list(csv.DictReader(lines, delimiter=TABLES[suffix(file)]))


def column(file: Path, rows: Sequence[dict[str, str]], name: str) -> list[str]:
    """Return a column of a table.

    Raises:
        ValueError: no such column, or it is empty in a row.
    """
    names = list(rows[0]) if rows else []
    if name not in names:
        raise ValueError(
            f"{file}: there is no column {name!r}, it has {', '.join(map(str, names)) or 'none'}"
        )
    return [row[name] or "" for row in rows]


def read_labels(path: str, count: int) -> tuple[Int[np.ndarray, " N"], tuple[str, ...]]:
    """Return labels from a file: an array .npy, or text with one on each line.

    Args:
        path: the file.
        count: number of sequences.

    Raises:
        FileNotFoundError, ValueError: no such file; another number of labels; a missing label.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"labels={path!r}: neither a column nor a file; must be a column or another array of "
            "the "
            "file of the sequences, or a file with one label on each line (.txt) or in an array "
            "(.npy)"
        )
    values: Any = (
        np.load(file, allow_pickle=False)
        if file.suffix == ".npy"
        else as_ints(list(text_lines(file)))
    )
    if len(values) != count:
        raise ValueError(
            f"labels={path!r}: holds {len(values)}, must hold one for each of {count} sequences"
        )
    return index_labels(values, f"labels={path!r}")


def as_ints(labels: Sequence[str]) -> list[Any]:
    """Return labels as ints if all that are there are written so; missing ones stay empty."""
    stripped = [label.strip() for label in labels]
    whole = all(INT.fullmatch(label) for label in stripped if label)
    return [int(label) if whole and label else label for label in stripped]


def chosen_labels(
    labels: str | None, columns: Callable[[str], Sequence[Any] | None], count: int
) -> tuple[Int[np.ndarray, " N"] | None, tuple[str, ...]]:
    """Return the labels and the names of their classes, from a column or from a file.

    None and () for none.

    Args:
        labels: name of a column, or a file.
        columns: returns the column of a name; None if there is none of that name.
        count: number of sequences.

    Raises:
        FileNotFoundError, TypeError, ValueError: neither a column nor a file; see ``read_labels``
            and ``labelled``.
    """
    if labels is None:
        return None, ()
    columns_of = columns(labels)
    if columns_of is None:
        return read_labels(labels, count)
    return index_labels(columns_of, f"labels={labels!r}")
