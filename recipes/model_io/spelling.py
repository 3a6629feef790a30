"""What is asked of a tokenizer, whichever library it is of."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


class Encoded(Protocol):
    """Of a text."""

    ids: list[int]


class TokenizerProtocol(Protocol):
    """Texts to words and back, as a ``tokenizers.Tokenizer`` does it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoded:
        """The words of a text."""
        ...

    def decode(self, words: Sequence[int]) -> str:
        """The text of words; special ones stand for none."""
        ...

    def id_to_token(self, word: int) -> str | None:
        """What the vocabulary calls a word."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """The words by what the vocabulary calls them."""
        ...

    def get_vocab_size(self) -> int:
        """How many words there are: states from here on are none."""
        ...


@runtime_checkable
class Talks(Protocol):
    """It knows how a chat is written."""

    template: str
    """What says so."""

    def talk(self, messages: Sequence[Mapping[str, str]], answers: bool = True) -> str:
        """The text of messages; see ``LoadedModel.chat``."""
        ...
