"""Tokenisation of documents: the tokenizer, its special tokens, and the bytes of each document."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
from tokenizers import AddedToken, Tokenizer

from recipes.data.corpora import Corpus
from recipes.data.detokenize import DETOKENIZERS
from recipes.data.hub import check_there
from recipes.data.text import train_tokenizer
from recipes.data.unknown import Symbols

TRAIN = "train:"
END_OF_TEXT = "<|endoftext|>"
BEGINNINGS, ENDINGS = (END_OF_TEXT, "[CLS]", "<s>"), (END_OF_TEXT, "[SEP]", "</s>")
"""Common names of the tokens for the beginning and the end of a text."""

BRACKETED = re.compile(r"\[\w+\]|<\W*\w+\W*>")
"""Pattern of tokens that represent no text."""

LEARNED_FROM = 50_000
"""Number of documents from which a vocabulary is learned."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that represent no text. A third-party tokenizer may lack any of them."""

    pad: int | None
    bos: int | None
    eos: int | None
    others: tuple[int, ...] = ()
    """Further tokens that end a text."""

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end a text."""
        return tuple(
            dict.fromkeys(token for token in (self.eos, *self.others) if token is not None)
        )


def load_tokenizer(name: str, revision: str | None = None) -> Tokenizer:
    """Load a tokenizer from the hub, a tokenizer.json, or a folder with one, without truncation and
    padding.

    Args:
        name: name of a model on the hub, or a path.
        revision: branch, tag or commit of the model on the hub.

    Raises:
        FileNotFoundError: a file or folder without a tokenizer, or a name that is not on the hub.
        ValueError: a file that is not a tokenizer, or a model on the hub without one.
    """
    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    if path.is_file():
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises no narrower class
            raise ValueError(f"tokenizer={name!r}: {path} is not a tokenizer: {error}") from error
    elif path.name.endswith(".json"):
        raise FileNotFoundError(f"tokenizer={name!r}: there is no file {path}")
    else:
        check_there(f"tokenizer={name!r}", name, "tokenizer.json", revision)
        try:
            tokenizer = Tokenizer.from_pretrained(
                name, **({} if revision is None else {"revision": revision})
            )
        except Exception as error:
            raise ValueError(
                f"tokenizer={name!r}: not a local file or folder, and the hub answers: {error}"
            ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def learn_tokenizer(name: str, documents: datasets.Dataset) -> Tokenizer:
    """Learn a byte-level BPE of as many tokens as in "train:4096", and the end of a text.

    Raises:
        ValueError: not a number, or fewer tokens than bytes or more than the text yields.
    """
    if not name.removeprefix(TRAIN).isdigit():
        raise ValueError(
            f"tokenizer={name!r}: must be {TRAIN} and a number of tokens, like {TRAIN}4096"
        )
    text = "\n".join(row["text"] or "" for row in islice(documents, LEARNED_FROM))
    try:
        tokenizer = train_tokenizer(text, int(name.removeprefix(TRAIN)))
    except ValueError as error:
        raise ValueError(f"tokenizer={name!r}: {error}") from error
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False)])
    return tokenizer


def add_special(tokenizer: Tokenizer, corpus: Corpus) -> SpecialIds:
    """Find the special tokens; padding is added to the vocabulary if it has none.

    Raises:
        ValueError: no token for the beginning or the end, with the flag that names one and the
            special tokens of the tokenizer; ids that are not 0..V-1.
    """
    roles = {"bos": (corpus.bos, BEGINNINGS), "eos": (corpus.eos, ENDINGS)}
    by_role = {role: _find(tokenizer, *names) for role, names in roles.items()}
    if missing := [role for role, number in by_role.items() if number is None]:
        raise ValueError(_missing(tokenizer, {role: roles[role] for role in missing}))
    if tokenizer.token_to_id(corpus.pad) is None:
        tokenizer.add_special_tokens([AddedToken(corpus.pad, normalized=False)])
    size = tokenizer.get_vocab_size()
    highest = max(tokenizer.get_vocab().values())
    if highest != size - 1:
        raise ValueError(
            f"tokenizer={corpus.tokenizer!r}: {size} tokens have ids up to {highest}, must be "
            f"0..{size - 1}"
        )
    return SpecialIds(tokenizer.token_to_id(corpus.pad), **by_role)


def id_dtype(vocab_size: int) -> str:
    """Return the smallest integer dtype that holds every id."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def tokenize(
    documents: datasets.Dataset,
    tokenizer: Tokenizer,
    special: SpecialIds,
    corpus: Corpus,
    cache: Path,
    workers: int,
) -> datasets.Dataset:
    """Tokenise the documents into columns "tokens" and "bytes", in the same order, without the
    empty ones.

    "unknown" holds the symbols of each document that the tokenizer lacks; a document of such
    symbols only has no tokens. "special" holds the special tokens that a document spells, without
    the unknown token. Bytes are those of the UTF-8 text that the tokenizer reads; special tokens
    count none.

    Args:
        documents: with the column "text".
        tokenizer: makes the ids.
        special: tokens put around each document.
        corpus: determines how texts are cleaned.
        cache: file for the result.
        workers: number of processes; the result does not depend on it.
    """
    kind = id_dtype(tokenizer.get_vocab_size())
    clean = DETOKENIZERS[corpus.detokenizer]

    symbols = Symbols(tokenizer)
    added = tokenizer.get_added_tokens_decoder().items()
    spelled = special_pattern(
        {one: token for one, token in added if token.content != symbols.token}
    )

    def encode(rows: dict[str, list[str | None]]) -> dict[str, list[object]]:
        texts = [clean(text) for text in rows["text"] if text and not text.isspace()]
        read = [(text, *one) for text, one in zip(texts, symbols.read(texts), strict=True)]
        nonempty = [one for one in read if one[1] or one[2]]
        return {
            "tokens": [
                np.array([special.bos, *ids, special.eos] if ids else [], dtype=kind)
                for _, ids, _ in nonempty
            ],
            "bytes": [len(text.encode()) for text, _, _ in nonempty],
            "unknown": [unknown for _, _, unknown in nonempty],
            "special": [spelled.findall(text) for text, _, _ in nonempty],
        }

    features = {"tokens": datasets.List(datasets.Value(kind)), "bytes": datasets.Value("int64")}
    features |= dict.fromkeys(("unknown", "special"), datasets.List(datasets.Value("string")))
    return documents.map(
        encode,
        batched=True,
        remove_columns=["text"],
        features=datasets.Features(features),
        num_proc=workers if workers > 1 else None,
        cache_file_name=str(cache),
        load_from_cache_file=False,
        new_fingerprint=cache.stem,  # the default would be a hash of this function
        desc=f"Tokens of {cache.stem}",
    )


def _find(tokenizer: Tokenizer, name: str | None, candidates: Iterable[str]) -> int | None:
    ids = map(tokenizer.token_to_id, candidates if name is None else (name,))
    return next((one for one in ids if one is not None), None)


def _missing(tokenizer: Tokenizer, roles: Mapping[str, tuple[str | None, Sequence[str]]]) -> str:
    """Return the message about the special tokens that a tokenizer lacks."""
    faults = [
        f"{role}={name!r}: the tokenizer has no token "
        f"{', '.join(candidates) if name is None else name}"
        for role, (name, candidates) in roles.items()
    ]
    flags = " and ".join(f"--{role} TOKEN" for role in roles)
    special = _special_looking(tokenizer)
    there = (
        f"its special tokens are {', '.join(special)}" if special else "it has no special tokens"
    )
    return f"{'; '.join(faults)}. Choose one of its tokens by {flags}; {there}"


def marked_special(added: Mapping[int, AddedToken]) -> set[str]:
    """Return the tokens that are marked as special among the added tokens of a tokenizer."""
    return {token.content for token in added.values() if token.special}


def special_pattern(added: Mapping[int, AddedToken]) -> re.Pattern[str]:
    """Return a pattern of the tokens that are marked as special, the longest first."""
    names = sorted(marked_special(added), key=len, reverse=True)
    # without a name the pattern matches nowhere
    return re.compile("|".join(map(re.escape, names)) or "(?!)")


def _special_looking(tokenizer: Tokenizer, most: int = 12) -> list[str]:
    """Return tokens that are marked as special, or written like [CLS] or <s>, in the order of their
    ids.
    """
    marked = marked_special(tokenizer.get_added_tokens_decoder())
    vocabulary = tokenizer.get_vocab()
    marked_tokens = [token for token in vocabulary if token in marked or BRACKETED.fullmatch(token)]
    return sorted(marked_tokens, key=vocabulary.__getitem__)[:most]
