"""Names of symbols: as a tokenizer, and the text of a sample."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

END, PAD = ENDS = "[EOS]", "[PAD]"
"""Names of end and padding, which follow the symbols of sequences that are given both."""


def named_tokenizer(symbols: Sequence[str], separator: str, ends: bool) -> Tokenizer:
    """Return a tokenizer of the names of symbols: their ids are their places.

    Args:
        symbols: the names.
        separator: what stands between names: a space, or nothing; then the longest name that fits
            is read.
        ends: whether to add an end and padding behind them.
    """
    tokenizer = Tokenizer(models.WordLevel({name: place for place, name in enumerate(symbols)}))
    if separator:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        names = "|".join(_literal(name) for name in sorted(symbols, key=len, reverse=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(names), "isolated")
        tokenizer.decoder = decoders.Fuse()
    if ends:
        tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ENDS])
    return tokenizer


def _literal(name: str) -> str:
    """Return a pattern of Oniguruma, the regular expressions of ``tokenizers``, that matches a
    name.
    """
    return "".join(
        character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in name
    )


def names_of(tokenizer: Any, ends: bool) -> list[str]:
    """Return the names of the symbols in the order of their ids, without an end and padding, which
    follow them.
    """
    count = tokenizer.get_vocab_size() - (len(ENDS) if ends else 0)
    return [tokenizer.id_to_token(number) for number in range(count)]


def spelt(ids: Int[np.ndarray, " L"], symbols: Sequence[str], separator: str) -> str:
    """Return the names of the symbols of a sample with the separator between them.

    Raises:
        ValueError: an id that is not a symbol.
    """
    ids = np.asarray(ids)
    if bad := [int(one) for one in ids if not 0 <= one < len(symbols)]:
        raise ValueError(f"a sample contains id {bad[0]}, must be in 0..{len(symbols) - 1}")
    return separator.join(symbols[one] for one in ids)
