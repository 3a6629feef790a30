"""Prepared data: a folder of tokens in memory-mapped Arrow files, and a manifest.

Format 1 holds text: columns ``tokens`` and ``bytes``. Format 2 holds symbols that are not text:
column ``tokens``, and ``label`` where sequences have labels; the manifest has ``symbols``, the
``Layout``. Both may have a column ``given``: 1 at each token of a document that is context, such as
a question, and 0 at one that is learned.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import load_from_disk
from jaxtyping import Bool, Int
from tokenizers import Tokenizer

import ddlib as dd
from ddlib import parts
from recipes.data.agreement import Vocabulary
from recipes.data.corpora import Corpus, SymbolCorpus
from recipes.data.layout import TEMPLATE, Layout
from recipes.data.source import Source

FORMAT = 1
SYMBOLS_FORMAT = 2
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SPLITS = ("train", "validation")


class Documents(Sequence[np.ndarray]):
    """Documents as token ids: ``documents[i]`` is an array (n,) that is read when it is used.

    Args:
        tokens: a list of ids for each document.
        num_bytes: UTF-8 bytes of each document's text; None for data that is not text.
        vocab_size: every id is below it.
        labels: index of each document's class; None for none.
        step: number of tokens that stay together where a document is cut: the voices of music.
        given: a list for each document, 1 at given tokens and 0 at others; None for none.

    Raises:
        ValueError: marks of given tokens for another number of tokens; on reading a document with
            another id, which on a GPU would end the process without a message.
    """

    def __init__(
        self,
        tokens: pa.ChunkedArray,
        num_bytes: pa.ChunkedArray | None,
        vocab_size: int,
        labels: pa.ChunkedArray | None = None,
        step: int = 1,
        given: pa.ChunkedArray | None = None,
    ) -> None:
        chunks = [chunk for chunk in tokens.chunks if len(chunk)]
        self._offsets = [chunk.offsets.to_numpy() for chunk in chunks]
        self._values = [chunk.values.to_numpy() for chunk in chunks]
        self._starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self._num_bytes = num_bytes
        self._vocab_size = vocab_size
        self._labels = labels
        self.step = step
        self._given = None if given is None else Documents(given, None, 2)
        if self._given is not None and not np.array_equal(self._given.lengths, self.lengths):
            raise ValueError("given: must have one mark for each token of each document")

    @classmethod
    def open(cls, folder: Path, vocab_size: int, step: int = 1) -> "Documents":
        """Open those of a folder that ``datasets`` saved."""
        table = load_from_disk(str(folder), keep_in_memory=False).data
        others = (
            table.column(name) if name in table.column_names else None
            for name in ("bytes", "label", "given")
        )
        num_bytes, labels, given = others
        return cls(table.column("tokens"), num_bytes, vocab_size, labels, step, given)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Int[np.ndarray, " n"]:
        if not 0 <= index < len(self):
            raise IndexError(f"document {index}: there are {len(self)}")
        chunk = int(np.searchsorted(self._starts, index, side="right")) - 1
        row = index - self._starts[chunk]
        document = self._values[chunk][self._offsets[chunk][row] : self._offsets[chunk][row + 1]]
        if (highest := int(document.max())) >= self._vocab_size:
            raise ValueError(
                f"document {index} holds id {highest}, must be below {self._vocab_size}: it is "
                "damaged"
            )
        return document

    @property
    def has_given(self) -> bool:
        """True if some documents may have given tokens."""
        return self._given is not None

    def given(self, index: int) -> Bool[np.ndarray, " n"]:
        """Return True at the given tokens of a document."""
        if self._given is None:
            return np.zeros(self.lengths[index], dtype=bool)
        return self._given[index].astype(bool)

    def given_behind(self, block: int, length: int) -> int | None:
        """Return the first document with a token that is given in a later block than one that is
        not; None if there is none.

        A document of more than ``length`` tokens is cut anywhere: none of its tokens may be given
        behind another.
        """
        for number in range(len(self) if self.has_given else 0):
            given = self.given(number)
            blocks = np.arange(len(given)) // (block if len(given) <= length else 1)
            free = blocks[~given]
            if len(free) and bool((given & (blocks > free[0])).any()):
                return number
        return None

    @cached_property
    def lengths(self) -> Int[np.ndarray, " N"]:
        """Number of tokens of each document, the special ones included."""
        return np.concatenate([np.diff(offsets) for offsets in self._offsets])

    @cached_property
    def num_bytes(self) -> Int[np.ndarray, " N"]:
        """Number of UTF-8 bytes of each document's text; special tokens count none.

        Raises:
            ValueError: the documents are not text.
        """
        if self._num_bytes is None:
            raise ValueError("num_bytes: the documents are sequences of symbols, not text")
        return self._num_bytes.to_numpy()

    @cached_property
    def labels(self) -> Int[np.ndarray, " N"]:
        """Index of each document's class; empty without labels."""
        return (
            np.empty(0, dtype=np.int64)
            if self._labels is None
            else self._labels.to_numpy().astype(np.int64)
        )

    def relabelled(self, numbers: Int[np.ndarray, " C"]) -> "Documents":
        """Return the documents with class ``numbers[n]`` in place of class n."""
        documents = copy(self)
        documents.labels = numbers[self.labels]
        return documents

    def bits_per_byte(self, nats_per_token: float, given: int = 0) -> float:
        """Convert nats/token to bits per byte of text: nats/token × tokens / bytes / ln 2, over all
        documents.

        ``given`` tokens of each document are left out, as they need no coding.

        Raises:
            ValueError: the documents are not text, or have given tokens, whose bytes are not known.
        """
        if self.has_given:
            raise ValueError("bits_per_byte: documents have given tokens, whose bytes are unknown")
        return (
            nats_per_token
            * (int(self.lengths.sum()) - given * len(self))
            / int(self.num_bytes.sum())
            / math.log(2)
        )


@dataclass(frozen=True)
class Prepared:
    """Prepared text or symbols, opened for reading."""

    folder: Path
    tokenizer: Tokenizer
    pad_id: int | None
    """Id of padding; None for symbols without an end: no row that is not packed has padding."""
    bos_id: int | None
    eos_id: int | None
    train: Documents
    validation: Documents
    fingerprint: str
    """Fingerprint of the vocabulary, see ``ddlib.vocabulary.fingerprint``."""
    manifest: dict[str, Any]
    """Content of the folder's manifest."""
    layout: Layout | None = None
    """Layout of symbols that are not text; None for text."""

    @property
    def content(self) -> str:
        """Fingerprint of all that determines the tokens: the texts, and how they are read and
        cut.
        """
        inputs = json.dumps(self.manifest["inputs"], sort_keys=True)
        return hashlib.sha256(inputs.encode()).hexdigest()

    @property
    def is_text(self) -> bool:
        """True for text, whose documents have a number of bytes."""
        return self.layout is None

    @property
    def ends(self) -> bool:
        """True if documents have an end, and padding behind it where rows are longer."""
        return self.layout is None or self.layout.ends

    @property
    def ragged(self) -> bool:
        """True for sequences of different lengths without an end: rows of one length are evaluated
        together.
        """
        return self.layout is not None and not self.layout.ends and self.layout.fixed is None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sequence, e.g. (28, 28); () for none."""
        return () if self.layout is None else self.layout.shape

    @property
    def values(self) -> tuple[int, ...]:
        """Value of grey or colour of each symbol, for pictures; else ()."""
        return () if self.layout is None else self.layout.values

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of the labels; () for none."""
        return () if self.layout is None else self.layout.classes

    def in_classes(self, classes: tuple[str, ...]) -> "Prepared":
        """Return the data with labels that index ``classes``, by their names.

        Names that ``classes`` lacks follow behind.
        """
        names = (*classes, *(name for name in self.classes if name not in classes))
        if self.layout is None or not self.classes or names == self.classes:
            return self
        numbers = np.array([names.index(name) for name in self.classes])
        train, validation = (split.relabelled(numbers) for split in (self.train, self.validation))
        layout = replace(self.layout, classes=names)
        return replace(self, train=train, validation=validation, layout=layout)

    @property
    def template(self) -> str:
        """Chat template of the tokenizer, from ``TEMPLATE`` for text; empty for none."""
        if self.layout is not None:
            return self.layout.template
        path = self.folder / TEMPLATE
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def text(self, tokens: Sequence[int]) -> str:
        """Return tokens as text; a row by the names of its fields."""
        if self.layout is None or not self.layout.is_row:
            return self.tokenizer.decode(list(tokens))
        pairs = zip(self.layout.by_position, tokens, strict=True)
        return ", ".join(f"{field.name} {field.symbols[token]}" for field, token in pairs)

    @property
    def fill_id(self) -> int:
        """Id that fills rows up: padding, or any symbol, which the mask of a batch leaves out."""
        return 0 if self.pad_id is None else self.pad_id

    @property
    def vocab_size(self) -> int:
        """Number of tokens, padding included."""
        return self.tokenizer.get_vocab_size()

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the tokenizer, or values of all fields, under its name in the corpus."""
        name = (
            self.manifest["corpus"]["tokenizer"]
            if self.is_text
            else f"the symbols of {self.folder}"
        )
        return Vocabulary.of(str(name), self.tokenizer.get_vocab(), self.layout)


def open_prepared(folder: Path, corpus: Corpus | SymbolCorpus | None = None) -> Prepared:
    """Open a folder written by ``prepare`` or ``prepare_ids``.

    Args:
        folder: folder of the tokens.
        corpus: the expected corpus; None for any.

    Raises:
        FileNotFoundError: the folder, or a file in it, is not there.
        ValueError: no manifest, another format, a file of another size, another tokenizer or number
            of documents than in the manifest, another corpus.
    """
    folder = Path(folder)
    manifest = _manifest(folder)
    if corpus is not None and (
        differing := changes(manifest["corpus"], _expand(corpus, manifest["corpus"]))
    ):
        place, there, wanted = differing[0]
        others = len(differing) - 1
        more = f"; {others} more values differ" if others else ""
        raise ValueError(
            f"data.corpus.{place}={wanted!r}: {folder} holds another corpus, prepared with "
            f"{there!r}{more}. To train "
            f"on its content leave data.corpus out and pass --data.folder {folder}"
        )
    text = (folder / TOKENIZER).read_text(encoding="utf-8")
    if hashlib.sha256(text.encode()).hexdigest() != manifest["tokenizer"]["sha256"]:
        raise ValueError(
            f"{folder / TOKENIZER} was changed since it was written: prepare the text again"
        )
    tokenizer = Tokenizer.from_str(text)
    layout = Layout.read(manifest["symbols"]) if "symbols" in manifest else None
    step = 1 if layout is None else layout.voices
    splits = {
        name: Documents.open(folder / name, tokenizer.get_vocab_size(), step) for name in SPLITS
    }
    for name, documents in splits.items():
        if len(documents) != manifest[name]["documents"]:
            raise ValueError(
                f"{folder / name} contains {len(documents)} documents, must contain "
                f"{manifest[name]['documents']}"
            )
    ids = (manifest["tokenizer"][name] for name in ("pad", "bos", "eos"))
    fingerprint = dd.vocabulary.fingerprint(tokenizer.get_vocab())
    return Prepared(
        folder,
        tokenizer,
        *ids,
        splits["train"],
        splits["validation"],
        fingerprint,
        manifest,
        layout,
    )


def sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every file in the folder but the manifest, by its name."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST)
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}


def corpus_of(folder: Path) -> Corpus | SymbolCorpus:
    """Return the corpus that a folder was prepared from; the original files are not required.

    Raises:
        FileNotFoundError, ValueError: as in ``open_prepared``, for the manifest and the files'
            sizes.
    """
    values = _manifest(Path(folder))["corpus"]
    if "source" in values:
        return SymbolCorpus(**values)
    return Corpus(**values | {name: Source(**values[name]) for name in SPLITS})


def _expand(corpus: Corpus | SymbolCorpus, there: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a corpus.

    Those of sources with all their keys, where a folder's differ.
    """
    values = asdict(corpus)
    for name in ("source", "validation"):
        entry = values.get(name)
        if isinstance(corpus, SymbolCorpus) and entry is not None and entry != there.get(name):
            values[name] = parts.read("sources", entry, place=name)
    return values


def changes(
    there: dict[str, Any], wanted: dict[str, Any], place: str = ""
) -> list[tuple[str, Any, Any]]:
    """Yield the differences of two nested dictionaries: the name, and the value in each."""
    listed = []
    for key in sorted({*there, *wanted}):
        left = there.get(key)
        right = wanted.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            listed += changes(left, right, f"{place}{key}.")
        elif left != right:
            listed.append((f"{place}{key}", left, right))
    return listed


def _manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest after comparing the files' sizes with it."""
    if folder.is_file():
        raise ValueError(
            f"{folder} is a file, must be a folder of prepared data: run python -m recipes.prepare "
            "local --files "
            f"{folder} for text, array --files {folder} for ids, table --files {folder} for a table"
        )
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} does not exist: run python -m recipes.prepare ... --out {folder}"
        )
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(
            f"{folder} contains no prepared text, or only a part of it, as it has no {MANIFEST}. "
            "Files of text or ids "
            "are prepared by python -m recipes.prepare"
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if manifest.get("format") not in (FORMAT, SYMBOLS_FORMAT):
        raise ValueError(
            f"{path} has format {manifest.get('format')!r}, this reads {FORMAT} and "
            f"{SYMBOLS_FORMAT}: prepare the text "
            "again"
        )
    present = sizes(folder)
    for name, size in manifest["files"].items():
        if name not in present:
            raise FileNotFoundError(f"{folder / name} is missing: prepare the text again")
        if present[name] != size:
            raise ValueError(
                f"{folder / name} has {present[name]} bytes, was written with {size}: prepare the "
                "text again"
            )
    return manifest
