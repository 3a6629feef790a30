"""Preparation of a corpus: tokenised once, written atomically, never overwriting other text."""

import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.compute as compute
from tokenizers import Tokenizer

import ddlib as dd
from recipes.data.corpora import Corpus, SymbolCorpus
from recipes.data.overlap import check_files, count_shared
from recipes.data.prepared import FORMAT, SPLITS, TOKENIZER, Documents, Prepared
from recipes.data.source import Files, Source, border, load_documents, place
from recipes.data.symbols import prepare_symbols
from recipes.data.tokens import TRAIN, add_special, learn_tokenizer, load_tokenizer, tokenize
from recipes.data.unknown import UNKNOWN, Symbols, check_unknown, count_unknown, list_symbols
from recipes.data.writing import bars_on_terminals_only, finish, once, tokenizer_hash


def prepare(
    corpus: Corpus | SymbolCorpus, folder: Path, workers: int = 1, unknown: float = UNKNOWN
) -> Prepared:
    """Write the tokens of a corpus into a folder; do nothing if they are there.

    The result depends on the texts and the tokenizer alone. It is written under another name and
    renamed: a folder of this name is complete. Processes that prepare the same folder wait for each
    other.

    Args:
        corpus: the text and its tokenizer, or symbols that are not text.
        folder: destination of the tokens.
        workers: number of processes that tokenise; one already uses all cores for most of the work.
        unknown: the largest accepted share of a split's tokens that are symbols which the tokenizer
            lacks.

    Raises:
        FileNotFoundError, ValueError: text or tokenizer that cannot be used, see
            ``load_documents``; a larger share of unknown symbols, see ``check_unknown``; the folder
            holds another corpus, or this one before its files or tokenizer changed.
    """
    if workers < 1:
        raise ValueError(f"workers={workers}: must be at least 1")
    if not 0 <= unknown <= 1:
        raise ValueError(
            f"unknown={unknown}: must lie in [0, 1], as it is the largest share of unknown symbols"
        )
    if isinstance(corpus, SymbolCorpus):
        return prepare_symbols(corpus, folder)

    def content() -> tuple[dict[str, Any], Callable[[Path], None]]:
        _check_files(corpus)
        tokenizer = None if corpus.tokenizer.startswith(TRAIN) else load_tokenizer(corpus.tokenizer)
        inputs = _inputs(corpus, tokenizer)
        return inputs, lambda unfinished: _write(
            corpus, tokenizer, inputs, unfinished, workers, unknown
        )

    prepared = once(folder, content)
    for name in SPLITS:
        counts = prepared.manifest["unknown"]
        check_unknown(name, prepared.manifest[name], counts, corpus, unknown)
    return prepared


def twentieth(source: Source) -> int:
    """Return the default number of last documents to hold out: a twentieth, with at least two that
    are not empty.
    """
    bars_on_terminals_only()
    with TemporaryDirectory() as cache:
        whole = load_documents(source, Path(cache))
        count = max(len(whole) // 20, 2)
        filled = sum(bool((text or "").strip()) for text in whole[-count:]["text"])
        while filled < 2 and count < len(whole):
            count += 1
            filled += bool((whole[len(whole) - count]["text"] or "").strip())
        return count


def _check_files(corpus: Corpus) -> None:
    """Refuse files that both splits read whole and in the same way."""
    train = corpus.train
    validation = corpus.validation
    alike = replace(train, path=validation.path) == validation and "[" not in train.split
    if alike and isinstance(place(train), Files):
        check_files(train.path, validation.path)


def _inputs(corpus: Corpus, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return all that determines the tokens: hashes of the texts, and how they are read and cut."""
    fields = asdict(corpus)
    for name in SPLITS:
        source = getattr(corpus, name)
        # without paths, as files may be moved
        fields[name] = {k: v for k, v in fields[name].items() if k not in ("path", "revision")}
        fields[name]["content"] = place(source).identity(source)
    fields["tokenizer"] = corpus.tokenizer if tokenizer is None else tokenizer_hash(tokenizer)
    return fields


def _write(
    corpus: Corpus,
    tokenizer: Tokenizer | None,
    inputs: dict[str, Any],
    folder: Path,
    workers: int,
    unknown: float,
) -> None:
    cache = folder / "cache"
    cache.mkdir()
    texts = {name: load_documents(getattr(corpus, name), cache) for name in SPLITS}
    if tokenizer is None:
        tokenizer = learn_tokenizer(corpus.tokenizer, texts["train"])
    special = add_special(tokenizer, corpus)
    (folder / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
    vocab = dd.vocabulary.fingerprint(tokenizer.get_vocab())
    symbols = Symbols(tokenizer)
    manifest = {
        "format": FORMAT,
        "corpus": asdict(corpus),
        "inputs": inputs,
        "tokenizer": {"sha256": tokenizer_hash(tokenizer), "vocabulary": vocab, **asdict(special)},
        "unknown": {"token": symbols.token, "reads_all": symbols.reads_all},
        "special": {},
    }
    documents: dict[str, Documents] = {}
    for name, text in texts.items():
        path = getattr(corpus, name).path
        try:
            tokens = tokenize(text, tokenizer, special, corpus, cache / f"{name}.arrow", workers)
        except UnicodeDecodeError as error:  # of Parquet, whose strings were not checked before
            raise ValueError(f"{name}: {path} has a document that is not UTF-8: {error}") from error
        lengths = compute.list_value_length(tokens.data.column("tokens")).to_numpy()
        lacking = Counter(compute.list_flatten(tokens.data.column("unknown")).to_pylist())
        special_tokens = Counter(compute.list_flatten(tokens.data.column("special")).to_pylist())
        tokens = tokens.remove_columns(["unknown", "special"])
        tokens = tokens if (lengths > 0).all() else tokens.select(np.flatnonzero(lengths))
        manifest["unknown"][name] = count_unknown(lacking)
        manifest["special"][name] = count_unknown(special_tokens)
        read = {"tokens": int(lengths.sum()), "documents": len(tokens)}
        check_unknown(name, read, manifest["unknown"], corpus, unknown)
        if len(tokens) == 0:
            raise ValueError(f"{name}: all {len(text)} documents of {path} are empty")
        if special_tokens:
            warnings.warn(
                f"{name}: {path} spells special tokens of tokenizer={corpus.tokenizer!r}, which "
                f"become these tokens: {list_symbols(manifest['special'][name]['symbols'])}. They "
                "separate no documents: write each as a line of a .jsonl file, without them",
                stacklevel=2,
            )
        tokens.save_to_disk(str(folder / name))
        documents[name] = Documents.open(folder / name, tokenizer.get_vocab_size())
        manifest[name] = _facts(documents[name], len(text))
    limited = not border(corpus.train, corpus.validation)
    manifest["shared"] = count_shared(documents["train"], documents["validation"], limited)
    del documents, texts, tokens
    shutil.rmtree(cache)
    finish(manifest, folder)


def _facts(documents: Documents, given: int) -> dict[str, int]:
    """Return the numbers of a split."""
    tokens = int(documents.lengths.sum())
    num_bytes = int(documents.num_bytes.sum())
    return {
        "documents": len(documents),
        "empty": given - len(documents),
        "tokens": tokens,
        "bytes": num_bytes,
    }
