"""Comparison of prepared data with what reads them: the tokenizer of a model, the rows of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ddlib as dd

if TYPE_CHECKING:
    from recipes.data.layout import Layout
    from recipes.data.prepared import Prepared

IDS = "ids"
"""Kind of the source of ``prepare_ids``, whose arrays were in memory."""


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary of a tokenizer, and its name for messages."""

    name: str
    ids: Mapping[str, int]
    """Token -> id."""

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


def check_lengths(data: "Prepared", length: int, packed: bool, place: str = "data") -> None:
    """Refuse rows that sequences of symbols without padding do not fit.

    Args:
        data: the prepared data.
        length: tokens of a row.
        packed: whether rows hold several sequences.
        place: place of the options in the recipe, for messages.

    Raises:
        ValueError: rows longer than sequences of one length, or shorter where those have a shape;
            sequences of different lengths in rows that are not packed; rows shorter than a sequence
            with given tokens.
    """
    if data.train.has_given:
        longest = int(max(split.lengths.max() for split in (data.train, data.validation)))
        if length < longest:
            raise ValueError(
                f"{place}.length={length}: {data.folder} holds sequences of up to {longest} "
                "tokens, some of them given, which are not cut, as a part might lack its context: "
                f"must be at least {longest}, or leave out the longest when they are prepared "
                "(--longest)"
            )
    if data.layout is None or data.layout.ends:
        return
    if data.ragged:
        if not packed:
            lengths = list(data.layout.lengths or (0,))
            raise ValueError(
                f"{place}.packed=False: {data.folder} holds sequences of {min(lengths)} to "
                f"{max(lengths)} symbols "
                f"without padding, so a row must contain several: pass --{place}.packed, or "
                "prepare it again with "
                "--ends, which adds an end and padding"
            )
        return
    size = data.layout.fixed or length
    if length > size:
        raise ValueError(
            f"{place}.length={length}: {data.folder} holds sequences of {size} symbols without "
            "padding, must be at "
            f"most {size}"
        )
    if length < size and data.shape:
        shape = " x ".join(map(str, data.shape))
        raise ValueError(
            f"{place}.length={length}: {data.folder} holds sequences of shape {shape}, which "
            "cannot be cut: must be "
            f"{size}"
        )
