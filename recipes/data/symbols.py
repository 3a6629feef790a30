"""Preparation of symbols that are not text: ids in Arrow files, and a tokenizer of their names."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

import ddlib as dd
from ddlib import parts, registry
from recipes.data.agreement import IDS
from recipes.data.corpora import SymbolCorpus
from recipes.data.overlap import check_files, count_shared
from recipes.data.prepared import SYMBOLS_FORMAT, TOKENIZER, Documents, Prepared
from recipes.data.sequences import (
    Layout,
    Ragged,
    Sequences,
    check_ints,
    check_range,
    count_lengths,
    index_labels,
    number_symbols,
)
from recipes.data.sources.files import on_hub
from recipes.data.splitting import split
from recipes.data.tokens import SpecialIds, id_dtype
from recipes.data.writing import finish, once, tokenizer_hash

CHUNK = 2**28
"""Largest number of ids in one chunk of a column: its offsets are 32-bit numbers."""

Labels = Sequence[Any] | np.ndarray


@dataclass(frozen=True)
class InMemory:
    """Source of sequences that are in memory."""

    sequences: Sequences

    def load(self) -> Sequences:
        return self.sequences

    def identity(self) -> dict[str, str]:
        ids = self.sequences.ragged
        labels = self.sequences.labels
        facts = {
            "symbols": self.sequences.symbols,
            "shape": self.sequences.shape,
            "values": self.sequences.values,
        }
        facts |= {"classes": self.sequences.classes, "separator": self.sequences.separator}
        whole = hashlib.sha256(repr(facts).encode())
        for part in (
            ids.values,
            ids.offsets,
            np.empty(0) if labels is None else np.asarray(labels),
        ):
            whole.update(np.ascontiguousarray(part, dtype=np.int64).tobytes())
        return {IDS: whole.hexdigest()}


def prepare_ids(
    train: Any,
    validation: Any,
    vocab_size: int,
    folder: Path,
    *,
    symbols: Sequence[str] | None = None,
    shape: Sequence[int] | None = None,
    values: Sequence[int] = (),
    labels: Labels | tuple[Labels, Labels] | None = None,
    separator: str | None = None,
    shuffle: int | None = None,
    ends: bool = False,
) -> Prepared:
    """Write sequences of ids into a folder, which every recipe takes; do nothing if they are there.

    Args:
        train: array (N, ...) of ints, or a list of arrays (n,) of any lengths.
        validation: the same; or the number of sequences of ``train`` that are held out, the last
            ones, of each class of the labels in equal shares.
        vocab_size: number V of symbols: ids are 0..V-1.
        folder: destination.
        symbols: names of the symbols; by default the ids.
        shape: shape of one sequence; by default that of arrays of three or more dimensions.
        values: value of grey or colour of each symbol, for pictures.
        labels: an int or a string for each sequence; of both splits, if ``validation`` has
            sequences.
        separator: what is printed between symbols; by default nothing if all names are single
            characters, else a space.
        shuffle: seed of a shuffle before sequences are held out.
        ends: add an end symbol and padding: the model learns lengths.

    Raises:
        TypeError: ids that are not ints.
        ValueError: an id outside of 0..V-1, a row that does not fit the shape, labels that do not
            fit, with the row and the value; the folder holds something else.

    Example:
        >>> import numpy as np, tempfile
        >>> pictures = np.random.default_rng(0).integers(0, 16, (40, 12, 12))
        >>> prepared = prepare_ids(pictures, 8, 16, Path(tempfile.mkdtemp()) / "pictures")
        >>> prepared.shape, len(prepared.train), prepared.pad_id
        ((12, 12), 32, None)
    """
    names = number_symbols(vocab_size) if symbols is None else tuple(symbols)
    if len(names) != vocab_size:
        raise ValueError(f"symbols: there are {len(names)}, must be vocab_size={vocab_size}")
    if separator is None:
        separator = "" if all(len(name) == 1 for name in names) else " "
    splits = {"train": train} | ({} if isinstance(validation, int) else {"validation": validation})
    columns = _columns(labels, list(splits))
    parts = {}
    for name, rows in splits.items():
        ids, row_shape = _rows(name, rows, vocab_size)
        size = tuple(shape) if shape is not None else row_shape
        marks, classes = (
            (None, ()) if columns is None else index_labels(columns[name], f"labels of {name}")
        )
        parts[name] = Sequences(
            ids=ids,
            symbols=names,
            shape=size,
            values=tuple(values),
            labels=marks,
            classes=classes,
            separator=separator,
        )
    corpus = SymbolCorpus(
        source={"kind": IDS},
        validation={"kind": IDS, "split": "validation"} if len(parts) > 1 else None,
        held_out=validation if len(parts) == 1 else None,
        shuffle=shuffle,
        ends=ends,
    )
    return _prepare(corpus, Path(folder), {name: InMemory(one) for name, one in parts.items()})


def prepare_symbols(corpus: SymbolCorpus, folder: Path) -> Prepared:
    """Write the sequences of a corpus; see ``recipes.data.prepare``."""
    values = {"source": corpus.source} | (
        {} if corpus.validation is None else {"validation": corpus.validation}
    )
    read = {name: parts.read("sources", value, place=name) for name, value in values.items()}
    sources = {
        "train" if name == "source" else name: dd.build("sources", one, place=name)
        for name, one in read.items()
    }
    corpus = replace(corpus, **read)
    if corpus.validation is not None and _without_paths(corpus.source) == _without_paths(
        corpus.validation
    ):
        train, validation = (one.get("files") for one in (corpus.source, corpus.validation))
        if train is not None and not on_hub(train):
            check_files(train, validation)
    return _prepare(corpus, Path(folder), sources)


def special_ids(tokenizer: Tokenizer, layout: Layout) -> SpecialIds:
    """Return the ids of end and padding, where sequences have them."""
    names = (layout.pad, "", layout.end)
    return SpecialIds(*(tokenizer.token_to_id(name) if layout.ends else None for name in names))


def _prepare(
    corpus: SymbolCorpus, folder: Path, sources: Mapping[str, registry.Source]
) -> Prepared:
    def content() -> tuple[dict[str, Any], Callable[[Path], None]]:
        inputs = asdict(corpus) | {
            name: _without_paths(getattr(corpus, name)) | {"content": source.identity()}
            for name, source in (
                ("source" if split == "train" else split, one) for split, one in sources.items()
            )
        }
        return inputs, lambda unfinished: _write(corpus, sources, inputs, unfinished)

    return once(folder, content)


def _without_paths(source: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a source but its paths: files may be moved, their content is hashed."""
    labels = source.get("labels")
    moved = {"files"} | (
        {"labels"} if isinstance(labels, str) and Path(labels).is_file() else set()
    )
    return {name: value for name, value in source.items() if name not in moved}


def _write(
    corpus: SymbolCorpus,
    sources: Mapping[str, registry.Source],
    inputs: dict[str, Any],
    folder: Path,
) -> None:
    splits, empty = split(corpus, sources)
    train = splits["train"]
    tokenizer = train.make_tokenizer(corpus.ends)
    for name, text in ({TOKENIZER: tokenizer.to_str()} | train.files()).items():
        (folder / name).write_text(text, encoding="utf-8")
    # other lengths in validation count 0: sequences have different lengths then too
    lengths = dict.fromkeys(np.unique(splits["validation"].ragged.lengths).tolist(), 0)
    lengths |= dict(count_lengths(train.ragged.lengths))
    layout = train.make_layout(str(dict(corpus.source)["kind"]), corpus.ends, lengths)
    special = special_ids(tokenizer, layout)
    manifest = {
        "format": SYMBOLS_FORMAT,
        "corpus": asdict(corpus),
        "inputs": inputs,
        "tokenizer": {
            "sha256": tokenizer_hash(tokenizer),
            "vocabulary": dd.vocabulary.fingerprint(tokenizer.get_vocab()),
            **asdict(special),
        },
        "symbols": layout.plain(),
        "notes": {name: list(one.notes) for name, one in splits.items()},
    }
    documents: dict[str, Documents] = {}
    for name, one in splits.items():
        _table(one, tokenizer.get_vocab_size(), special.eos).save_to_disk(str(folder / name))
        documents[name] = Documents.open(folder / name, tokenizer.get_vocab_size())
        tokens = int(documents[name].lengths.sum())
        manifest[name] = {"documents": len(documents[name]), "empty": empty[name], "tokens": tokens}
        manifest[name] |= {"left_out": one.left_out}
    manifest["shared"] = count_shared(
        documents["train"], documents["validation"], limited=corpus.validation is not None
    )
    finish(manifest, folder)


def _table(sequences: Sequences, vocab: int, end: int | None) -> datasets.Dataset:
    """Return the columns "tokens" and, where there are any, "label" and "given"."""
    kind = np.dtype(id_dtype(vocab))
    ids = sequences.ragged
    values = ids.values.astype(kind)
    offsets = ids.offsets
    if end is not None:
        values = np.insert(values, offsets[1:], kind.type(end))
        offsets = offsets + np.arange(len(offsets))
    chunks = []
    first = 0
    while first < len(ids):
        last = max(
            int(np.searchsorted(offsets, offsets[first] + CHUNK, side="right")) - 1, first + 1
        )
        bounds = offsets[first : last + 1]
        part = pa.array(values[bounds[0] : bounds[-1]])
        chunks.append(
            pa.ListArray.from_arrays(pa.array((bounds - bounds[0]).astype(np.int32)), part)
        )
        first = last
    columns = {"tokens": pa.chunked_array(chunks)}
    if sequences.given is not None:
        columns["given"] = _marks(sequences.given, columns["tokens"], int(end is not None))
    if sequences.labels is not None:
        columns["label"] = pa.chunked_array(
            [pa.array(np.asarray(sequences.labels, dtype=np.int32))]
        )
    return datasets.Dataset(pa.table(columns))


def _marks(given: Sequence[np.ndarray], tokens: pa.ChunkedArray, ends: int) -> pa.ChunkedArray:
    """Return the marks of given tokens in lists as long as those of the tokens.

    The end of a sequence, if there is one, is learned.
    """
    chunks = []
    first = 0
    for chunk in tokens.chunks:
        rows = [
            np.append(row, np.zeros(ends, dtype=bool)) for row in given[first : first + len(chunk)]
        ]
        marks = pa.array(np.concatenate(rows).astype(np.uint8))
        chunks.append(pa.ListArray.from_arrays(chunk.offsets, marks))
        first += len(chunk)
    return pa.chunked_array(chunks)


def _rows(name: str, given: Any, vocab: int) -> tuple[Ragged, tuple[int, ...]]:
    """Return ids in memory and the shape of a sequence, () for one row of ids."""
    array = np.asarray(given) if not isinstance(given, list | tuple) else None
    if array is None:
        lengths = {np.shape(one) for one in given}
        array = (
            np.stack([np.asarray(one) for one in given])
            if len(lengths) == 1 and len(lengths.pop()) > 1
            else None
        )
    if array is not None:
        if array.ndim < 2:
            count = "; a number of held-out sequences is an int" if array.ndim == 0 else ""
            raise ValueError(
                f"{name}: has shape {array.shape}, must have a row for each sequence, (N, "
                f"...){count}"
            )
        check_ints(array, name)
        size = int(np.prod(array.shape[1:]))
        ragged = Ragged(np.ascontiguousarray(array).reshape(-1), np.arange(len(array) + 1) * size)
    else:
        ragged = Ragged.of(given, name)
    check_range(ragged, vocab, name)
    return ragged, array.shape[1:] if array is not None and array.ndim > 2 else ()


def _columns(labels: Any, splits: Sequence[str]) -> dict[str, Any] | None:
    """Return the labels of each split."""
    if labels is None:
        return None
    pair = isinstance(labels, tuple) and len(labels) == 2 and np.ndim(labels[0]) > 0
    if pair != (len(splits) == 2):
        rule = (
            "a pair, those of train and those of validation"
            if not pair
            else "one for each sequence, not a pair"
        )
        raise ValueError(f"labels: must be {rule}")
    return dict(zip(splits, labels if pair else [labels], strict=True))
