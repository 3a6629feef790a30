"""Interface of tokenizers from several libraries."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


class Encoded(Protocol):
    """Encoding of a text."""

    ids: list[int]


class TokenizerProtocol(Protocol):
    """Conversion of texts to tokens and back; a ``tokenizers.Tokenizer`` satisfies it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoded:
        """Return the tokens of a text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        ...

    def id_to_token(self, token: int) -> str | None:
        """Return a token's entry in the vocabulary."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Return the token ids by their entries in the vocabulary."""
        ...

    def get_vocab_size(self) -> int:
        """Return the number of tokens: larger states are not tokens."""
        ...


@runtime_checkable
class HasChatTemplate(Protocol):
    """Tokenizer with a chat template."""

    template: str
    """The chat template."""

    def format_chat(self, messages: Sequence[Mapping[str, str]], answers: bool = True) -> str:
        """Format messages as a text; see ``LoadedModel.chat``."""
        ...
