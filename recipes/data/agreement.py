"""Comparison of prepared data with what reads them: the tokenizer of a model, the rows of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import ddlib as dd

if TYPE_CHECKING:
    from recipes.data.layout import Layout

IDS = "ids"
"""Kind of the source of ``prepare_ids``, whose arrays were in memory."""


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary of a tokenizer, and its name for messages."""

    name: str
    ids: Mapping[str, int]
    """Token -> id."""

    @classmethod
    def of(cls, name: str, tokens: Mapping[str, int], layout: "Layout | None") -> Self:
        """Return the vocabulary of a tokenizer; with several alphabets the values of all fields.

        Args:
            name: name for messages.
            tokens: token -> id of the tokenizer.
            layout: layout of symbols that are not text; None for text.
        """
        return cls(name, (layout and layout.values_of_fields) or tokens)

    def __str__(self) -> str:
        return f"{self.name} ({len(self.ids)} tokens, fingerprint {dd.fingerprint(self.ids)[:12]})"

    def at(self, index: int) -> str:
        """The token of an id, quoted, or "no token"."""
        return next(
            (repr(token) for token, number in self.ids.items() if number == index), "no token"
        )


def check_same_tokens(
    argument: str,
    text: Vocabulary,
    model: Vocabulary,
    advice: str,
    *,
    size: int | None = None,
    padding: int | None = None,
) -> None:
    """Raise for ids that are other tokens in the model's vocabulary than in that of the tokenizer
    that made them.

    Args:
        argument: name and value of the argument that combines the two, e.g.
            ``data.folder=data/mine``.
        text: tokenizer of the ids.
        model: tokenizer that the model was trained with.
        advice: what to do instead.
        size: only ids below it are compared; None for all.
        padding: an id of padding, which is not compared; None compares all.

    Raises:
        ValueError: a token has another id, or only one of the two has it. The message names both
            tokenizers, each with its size and fingerprint, and the first id at which they differ.
    """
    pairs = [{(index, token) for token, index in one.ids.items()} for one in (text, model)]
    differing = {index for index, _ in pairs[0] ^ pairs[1] if size is None or index < size} - {
        padding
    }
    if differing:
        first = min(differing)
        raise ValueError(
            f"{argument}: made with another tokenizer than the model's. The data's is {text}, the "
            f"model's {model}; id "
            f"{first} is {text.at(first)} of the data's and {model.at(first)} of the model's. "
            f"{advice}"
        )


def prepare_with(tokenizer: object, layout: "Layout | None" = None) -> str:
    """Return the command that prepares data for a model.

    Args:
        tokenizer: name or path of the tokenizer of text.
        layout: layout of symbols that are not text; None for text.
    """
    if layout is not None and layout.kind == IDS:
        return "recipes.data.prepare_ids(..., symbols=) with the symbols of the model"
    if layout is not None:
        kind = f"source {layout.kind}" if ":" in layout.kind else layout.kind
        return (
            f"python -m recipes.prepare {kind} --out FOLDER, with the options of the model's data"
        )
    return f"python -m recipes.prepare local --files FILES --tokenizer {tokenizer} --out FOLDER"
