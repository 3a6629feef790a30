"""Names of symbols as a tokenizer."""

from collections.abc import Sequence

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
