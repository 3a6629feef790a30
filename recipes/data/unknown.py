"""Unknown symbols: parts of a text that a tokenizer lacks, counted and limited."""

import json
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from recipes.data.corpora import Corpus

UNKNOWN = 0.01
"""Largest share of unknown symbols that is accepted by default."""

LISTED = 10
"""Maximum number of distinct symbols that are listed."""

LONGEST = 40
"""Maximum number of characters listed of a symbol."""


class Symbols:
    """Token ids of texts, and the symbols that the tokenizer lacks.

    The unit depends on the tokenizer: a word of a word-level one, a run of characters or a single
    one of others. Such a symbol becomes the tokenizer's unknown token. Without one, byte-pair
    encoding drops the symbol and other tokenizers cannot read the text. Byte-level tokenizers, and
    those with byte fallback, have every symbol.

    Args:
        tokenizer: makes the ids.

    Attributes:
        token: the unknown token; None if there is none.
        reads_all: whether a text with an unknown symbol has ids at all.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        model = json.loads(tokenizer.to_str())["model"]
        unk_id = model.get("unk_id")
        token = model.get("unk_token")
        token = token if unk_id is None else tokenizer.id_to_token(unk_id)
        self.token: str | None = (
            token if token is not None and tokenizer.token_to_id(token) is not None else None
        )
        self.reads_all = self.token is not None or model["type"] == "BPE"
        self._id = None if self.token is None else tokenizer.token_to_id(self.token)
        self._left_out: dict[str, bool] = {}

    @property
    def become(self) -> str:
        """Return what replaces unknown symbols, for messages."""
        return becoming(self.token, self.reads_all)

    def read(self, texts: Sequence[str]) -> list[tuple[list[int], list[str]]]:
        """Return the ids of each text, without special tokens, and its unknown symbols in their
        order.

        A text that cannot be encoded has no ids.
        """
        try:
            entries = [
                one.ids
                for one in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            ]
        except Exception:  # tokenizers raises no narrower class where the unknown token is missing
            if self.reads_all:
                raise
            entries = [self._ids(text) for text in texts]
        return [
            (ids or [], self._unknown(text, ids)) for text, ids in zip(texts, entries, strict=True)
        ]

    def unknown(self, text: str) -> list[str]:
        """Return the unknown symbols of a text in their order."""
        return self.read([text])[0][1]

    def _ids(self, text: str) -> list[int] | None:
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception:
            return None

    def _unknown(self, text: str, ids: Sequence[int] | None) -> list[str]:
        if ids is None:
            return list(self._unreadable(text)) or [text]
        if self._id is None:
            lost = (
                {letter for letter in set(text) if self._is_left_out(letter)}
                if self.reads_all
                else ()
            )
            return [letter for letter in text if letter in lost] if lost else []
        if self._id not in ids:
            return []
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        spans = zip(encoded.ids, encoded.offsets, strict=True)
        pieces = [text[begin:end] for number, (begin, end) in spans if number == self._id]
        return [
            symbol for symbol in pieces if symbol != self.token
        ]  # a text may contain the token itself

    def _is_left_out(self, letter: str) -> bool:
        """Return whether a character has no token although neither normalizer nor pre-tokenizer
        removes it.
        """
        if letter not in self._left_out:
            self._left_out[letter] = not self._ids(letter) and any(self._pieces(letter))
        return self._left_out[letter]

    def _unreadable(self, text: str) -> Iterator[str]:
        for piece in self._pieces(text):
            try:
                self._tokenizer.model.tokenize(piece)
            except Exception:
                yield piece

    def _pieces(self, text: str) -> list[str]:
        """Return the pieces of a text that the tokenizer's model receives."""
        normalizer = self._tokenizer.normalizer
        pre_tokenizer = self._tokenizer.pre_tokenizer
        text = text if normalizer is None else normalizer.normalize_str(text)
        return (
            [text]
            if pre_tokenizer is None
            else [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]
        )


def becoming(token: str | None, reads_all: bool) -> str:
    """Return what replaces unknown symbols, for messages.

    Arguments as the attributes of ``Symbols``.
    """
    return (
        f"would become {token}" if token else "would be left out" if reads_all else "cannot be read"
    )


def count_unknown(symbols: Mapping[str, int]) -> dict[str, Any]:
    """Return the manifest's entry on unknown symbols of a split: their number, and the counts of
    the first ten.
    """
    return {"count": sum(symbols.values()), "symbols": dict(list(symbols.items())[:LISTED])}


def list_symbols(symbols: Mapping[str, int]) -> str:
    """Return symbols with their counts; characters that cannot be printed by their code points."""
    return ", ".join(f"{show_symbol(symbol)} ({count:,})" for symbol, count in symbols.items())


def show_symbol(symbol: str) -> str:
    """Return a symbol in quotes, or the code points and names of its characters if one cannot be
    printed.
    """
    symbol = symbol if len(symbol) <= LONGEST else f"{symbol[:LONGEST]}..."
    if symbol.isprintable() and not symbol.isspace():
        return repr(symbol)
    return " ".join(
        f"U+{ord(letter):04X} {unicodedata.name(letter, '')}".strip() for letter in symbol
    )


def check_unknown(
    name: str, facts: Mapping[str, Any], unknown: Mapping[str, Any], corpus: Corpus, largest: float
) -> None:
    """Raise for a split with too many unknown symbols.

    Args:
        name: name of the split.
        facts: its numbers of tokens and documents.
        unknown: the manifest's entry under this key.
        corpus: the text and its tokenizer.
        largest: accepted share of unknown symbols, of the tokens without the two ends of each
            document.

    Raises:
        ValueError: a larger share, with the first of the symbols; any symbol where the tokenizer
            has no unknown token and cannot read it.
    """
    token = unknown["token"]
    reads_all = unknown["reads_all"]
    count = unknown[name]["count"]
    # without an unknown token the symbols are not among the tokens
    total = facts["tokens"] - 2 * facts["documents"] + (count if token is None else 0)
    share = count / max(total, 1)
    if not count or (reads_all and share <= largest):
        return
    accept = f", or accept them by --unknown {math.ceil(share * 100) / 100:g}" if reads_all else ""
    raise ValueError(
        f"{name}: {count:,} symbols of {getattr(corpus, name).path} ({share:.2%} of the tokens, at "
        f"most {largest:.2%} "
        f"are accepted) are not in tokenizer={corpus.tokenizer!r} and "
        f"{becoming(token, reads_all)}: "
        f"{list_symbols(unknown[name]['symbols'])}. Use another tokenizer (train:4096 learns one "
        f"with every byte){accept}"
    )
