"""From documents to token ids: the tokenizer, its special tokens, and the bytes that the tokens stand for."""

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
from recipes.data.text import train_tokenizer
from recipes.data.unknown import Symbols

TRAIN = "train:"
END_OF_TEXT = "<|endoftext|>"
BEGINNINGS, ENDINGS = (END_OF_TEXT, "[CLS]", "<s>"), (END_OF_TEXT, "[SEP]", "</s>")
"""What tokenizers call the beginning and the end of a text."""

BRACKETED = re.compile(r"\[\w+\]|<\W*\w+\W*>")
"""How tokens are written that stand for no text."""

LEARNED_FROM = 50_000
"""Documents from which a vocabulary is learned."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that stand for no text. A tokenizer of somebody else's may lack any of them."""

    pad: int | None
    bos: int | None
    eos: int | None
    others: tuple[int, ...] = ()
    """Others that end a text."""

    @property
    def ends(self) -> tuple[int, ...]:
        """Those that end a text."""
        return tuple(dict.fromkeys(word for word in (self.eos, *self.others) if word is not None))


def load_tokenizer(name: str, revision: str | None = None) -> Tokenizer:
    """A tokenizer from the hub, a tokenizer.json, or a folder with one; it neither cuts off nor fills up texts.

    Args:
        name: of a model on the hub, or a path.
        revision: branch, tag or commit of the model on the hub.

    Raises:
        FileNotFoundError: a file or folder without a tokenizer.
        ValueError: a file that is none, or a name that the hub does not know.
    """
    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    if path.is_file():
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing more special
            raise ValueError(f"tokenizer={name!r}: {path} is no tokenizer: {error}") from error
    elif path.name.endswith(".json"):
        raise FileNotFoundError(f"tokenizer={name!r}: there is no file {path}")
    else:
        try:
            tokenizer = Tokenizer.from_pretrained(name, **({} if revision is None else {"revision": revision}))
        except Exception as error:
            raise ValueError(f"tokenizer={name!r}: no file or folder here, and the hub says: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def learn_tokenizer(name: str, documents: datasets.Dataset) -> Tokenizer:
    """Byte-level BPE of as many words as "train:4096" says, and the end of a text.

    Raises:
        ValueError: not a number, or fewer words than bytes or more than the text yields.
    """
    if not name.removeprefix(TRAIN).isdigit():
        raise ValueError(f"tokenizer={name!r}: must be {TRAIN} and a number of words, like {TRAIN}4096")
    text = "\n".join(row["text"] or "" for row in islice(documents, LEARNED_FROM))
    try:
        tokenizer = train_tokenizer(text, int(name.removeprefix(TRAIN)))
    except ValueError as error:
        raise ValueError(f"tokenizer={name!r}: {error}") from error
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False)])
    return tokenizer


def add_special(tokenizer: Tokenizer, corpus: Corpus) -> SpecialIds:
    """Finds the special tokens; padding is added to the vocabulary if it has none.

    Raises:
        ValueError: no token for the beginning or the end, with the flag that names one and the special tokens that
            there are; ids that are not 0..V-1.
    """
    wanted = {"bos": (corpus.bos, BEGINNINGS), "eos": (corpus.eos, ENDINGS)}
    found = {role: _find(tokenizer, *names) for role, names in wanted.items()}
    if missing := [role for role, number in found.items() if number is None]:
        raise ValueError(_missing(tokenizer, {role: wanted[role] for role in missing}))
    if tokenizer.token_to_id(corpus.pad) is None:
        tokenizer.add_special_tokens([AddedToken(corpus.pad, normalized=False)])
    size, highest = tokenizer.get_vocab_size(), max(tokenizer.get_vocab().values())
    if highest != size - 1:
        raise ValueError(
            f"tokenizer={corpus.tokenizer!r}: {size} tokens have ids up to {highest}, must be 0..{size - 1}"
        )
    return SpecialIds(tokenizer.token_to_id(corpus.pad), **found)


def id_dtype(vocab_size: int) -> str:
    """The smallest type that holds every id."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def tokenize(
    documents: datasets.Dataset, tokenizer: Tokenizer, special: SpecialIds, corpus: Corpus, cache: Path, workers: int
) -> datasets.Dataset:
    """The documents as "tokens" and "bytes", in the same order; without the empty ones.

    "unknown" holds the symbols of each that the tokenizer does not have; a document of nothing else has no tokens.
    Bytes are those of the UTF-8 text that the tokenizer reads; the special tokens stand for none.

    Args:
        documents: with the column "text".
        tokenizer: makes the ids.
        special: is put around each document.
        corpus: says how texts are cleaned.
        cache: file for the result.
        workers: number of processes; it changes nothing but the time.
    """
    kind = id_dtype(tokenizer.get_vocab_size())
    clean = DETOKENIZERS[corpus.detokenizer]

    symbols = Symbols(tokenizer)

    def encode(rows: dict[str, list[str | None]]) -> dict[str, list[object]]:
        texts = [clean(text) for text in rows["text"] if text and not text.isspace()]
        read = [(text, *one) for text, one in zip(texts, symbols.read(texts), strict=True)]
        kept = [one for one in read if one[1] or one[2]]
        return {
            "tokens": [np.array([special.bos, *ids, special.eos] if ids else [], dtype=kind) for _, ids, _ in kept],
            "bytes": [len(text.encode()) for text, _, _ in kept],
            "unknown": [unknown for _, _, unknown in kept],
        }

    features = {"tokens": datasets.List(datasets.Value(kind)), "bytes": datasets.Value("int64")}
    features["unknown"] = datasets.List(datasets.Value("string"))
    return documents.map(
        encode,
        batched=True,
        remove_columns=["text"],
        features=datasets.Features(features),
        num_proc=workers if workers > 1 else None,
        cache_file_name=str(cache),
        load_from_cache_file=False,
        new_fingerprint=cache.stem,  # its own would be a hash of this function
        desc=f"Tokens of {cache.stem}",
    )


def _find(tokenizer: Tokenizer, wanted: str | None, known: Iterable[str]) -> int | None:
    ids = map(tokenizer.token_to_id, known if wanted is None else (wanted,))
    return next((found for found in ids if found is not None), None)


def _missing(tokenizer: Tokenizer, roles: Mapping[str, tuple[str | None, Sequence[str]]]) -> str:
    """What is said of ends that a tokenizer lacks."""
    faults = [
        f"{role}={wanted!r}: the tokenizer has no token {', '.join(known) if wanted is None else wanted}"
        for role, (wanted, known) in roles.items()
    ]
    flags = " and ".join(f"--{role} TOKEN" for role in roles)
    special = _special_looking(tokenizer)
    there = f"its special tokens are {', '.join(special)}" if special else "it has no special tokens"
    return f"{'; '.join(faults)}. Name one that it has with {flags}; {there}"


def _special_looking(tokenizer: Tokenizer, most: int = 12) -> list[str]:
    """Tokens that are marked as special, or written like [CLS] or <s>; in the order of their ids."""
    marked = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    vocabulary = tokenizer.get_vocab()
    found = [token for token in vocabulary if token in marked or BRACKETED.fullmatch(token)]
    return sorted(found, key=vocabulary.__getitem__)[:most]
