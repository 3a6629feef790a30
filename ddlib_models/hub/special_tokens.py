"""Special ids of a tokenizer: the mask, ends of sequences, ids that are not tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

import ddlib as dd
from ddlib.utils.validation import due, refuse
from ddlib_models.hub.family import Config, Family


@dataclass(frozen=True)
class Special:
    """Ids of a tokenizer with a special meaning, and those that are not tokens.

    A token's number is its id. ``vocab_size`` is one more than the last id that is a token, and the
    mask is the state with that number, whatever its id is. An id below it that is not a token, such
    as the mask's id, has no probability.
    """

    vocab_size: int
    mask: int | None
    """The tokenizer's id of the mask; the state is ``vocab_size``.

    None for noise without a mask.
    """
    bos: int | None
    eos: int | None
    eot: int | None
    """The end of a turn, where it is another token than ``eos``."""
    pad: int | None
    ends: tuple[int, ...]
    """All ids that end a sequence or a turn: tokens after the first of them do not belong to it."""
    undrawn: tuple[int, ...]
    """Ids below ``vocab_size`` that are not tokens: the mask's, those without a token, those never
    drawn.
    """
    names: dict[int, str] = field(default_factory=dict, repr=False)
    """Tokens of ``undrawn``, for messages."""

    def states(self, ids: Int64[Tensor, "B L"]) -> Int64[Tensor, "B L"]:
        """Convert ids of the tokenizer to states: the mask's id becomes the mask.

        Raises:
            ValueError: ids that are neither tokens nor the mask, where values are checked, see
                ``ddlib.debug``.
        """
        if due(ids):
            # the state of the mask is not an id, unless it equals the mask's id
            none = (ids < 0) | (ids >= self.vocab_size) & (
                ids != (-1 if self.mask is None else self.mask)
            )
            if bool(none.any()):
                mask = "" if self.mask is None else f", or the mask's, {self.mask}"
                refuse(
                    f"ids contain {int(ids[none][0])}: must be ids of tokens, in "
                    f"0..{self.vocab_size - 1}{mask}"
                )
        z = ids if self.mask is None else torch.where(ids == self.mask, self.vocab_size, ids)
        self.check(z)
        return z

    def check(self, z: Int64[Tensor, "B L"]) -> None:
        """Raise for states that are ids but no tokens.

        States beyond the ids are checked by the network.

        Raises:
            ValueError: naming the first of them.
        """
        if self.undrawn and due(z):
            none = torch.isin(z, torch.tensor(self.undrawn, device=z.device))
            if bool(none.any()):
                index = int(z[none][0])
                token = f", the token {self.names[index]!r}," if index in self.names else ""
                mask = f"; the mask is the state {self.vocab_size}" if index == self.mask else ""
                refuse(
                    f"z contains id {index}{token} which is not a token of the process and has no "
                    f"probability{mask}"
                )

    def answer(self, tokens: Any, prompt: int = 0) -> list[Any]:
        """Return the tokens behind a prompt and before the first end that follows it.

        Args:
            tokens: a sequence (L,), or of a batch (B, L); a tensor or lists.
            prompt: number of tokens at the front to leave out; an end among them, as after a
                message of a chat, ends nothing.

        Returns:
            A list of tokens; for a batch a list of such lists.

        Raises:
            ValueError: a negative ``prompt``, or one that is longer than a sequence.
        """
        tokens = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        if tokens and isinstance(tokens[0], (Tensor, Sequence)):
            return [self.answer(row, prompt) for row in tokens]
        if not 0 <= prompt <= len(tokens):
            raise ValueError(
                f"prompt={prompt}: must lie in 0..{len(tokens)}, as it is a number of tokens of a "
                "sequence"
            )
        return list(takewhile(lambda token: token not in self.ends, tokens[prompt:]))

    def endings(self) -> tuple[dd.controls.EndOfText, ...]:
        """Return the stopping rules for ``dd.sample``: only padding follows a token that ends a
        sequence.
        """
        fill = self.pad if self.pad is not None and self.pad not in self.undrawn else None
        return tuple(dd.controls.EndOfText(word, fill=fill) for word in self.ends)


def find_mask(
    name: str, family: Family, config: Config, tokenizer: Any, requested: str | int | None
) -> int:
    """Return the id of the mask: the one given, or that of config.json, the tokenizer, or the
    family.

    Raises:
        ValueError: none of them names one, they disagree, or it is neither a token nor an id.
    """
    if isinstance(requested, int):
        if requested < 0 or isinstance(requested, bool):
            raise ValueError(f"mask={requested!r}: must be a token or an id, at least 0")
        return requested
    if requested is not None:
        tokens = tokenizer.get_vocab()
        if requested not in tokens and not requested.isdecimal():
            raise ValueError(
                f"mask={requested!r}: must be a token of {name}'s tokenizer, which does not "
                "contain it"
            )
        return tokens[requested] if requested in tokens else int(requested)
    named = {
        "mask_token_id of config.json": config.get("mask_token_id"),
        "the tokenizer": tokenizer.mask_token_id,
    }
    named = {source: index for source, index in named.items() if index is not None}
    if len(set(named.values())) > 1:
        listed = ", ".join(f"{source} has {index}" for source, index in named.items())
        raise ValueError(
            f"{name}: {listed}; pass the id of the mask: mask=ID (on the command line --mask-token "
            "ID)"
        )
    ids = [*named.values(), *(_id(tokenizer, one) for one in family.mask or ())]
    mask_id = next((index for index in ids if index is not None), None)
    if mask_id is None:
        causal = str((config.get("architectures") or [""])[0]).endswith("ForCausalLM")
        raise ValueError(
            f"{name}: its tokenizer has no mask token, and config.json no mask_token_id. If one of "
            "its tokens was the "
            "mask in training, pass mask='<token>' (on the command line --mask-token '<token>'). "
            "Otherwise add one, "
            "tokenizer.add_special_tokens({'mask_token': '<|mask|>'}) and "
            "model.resize_token_embeddings(len(tokenizer)), train the model with it and save both"
            + f": python -m recipes.adapt mdlm --from {name} does all of this for a causal model"
            * causal
        )
    return int(mask_id)


def describe(
    name: str,
    family: Family,
    generation: Config,
    tokenizer: Any,
    mask: int | None,
    rows: int | None,
) -> Special:
    """Collect the special ids of a model.

    Args:
        name: name of the model, for messages.
        family: family of the model.
        generation: content of generation_config.json.
        tokenizer: tokenizer of the model.
        mask: the id of its mask; None where the tokenizer has none, and every row of the table is a
            token.
        rows: rows of the model's table, if config.json has it.

    Raises:
        ValueError: the table has fewer rows than the tokenizer has tokens.
    """
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    last = max(max(tokens), -1 if mask is None else mask)
    if rows is not None and last >= rows:
        more = [tokens.get(index, str(index)) for index in sorted(tokens) if index >= rows][:3]
        raise ValueError(
            f"{name}: vocab_size={rows} of config.json, and the highest id of the tokenizer is "
            f"{last} "
            f"({', '.join(more)}): each id must have a row; "
            "model.resize_token_embeddings(len(tokenizer)) adds them"
        )
    barred = {index for token in family.undrawn if (index := _id(tokenizer, token)) is not None}
    if mask is None:
        vocab_size = rows if rows is not None else last + 1
        undrawn = ()
    else:
        drawable = tokens.keys() - barred - {mask}
        vocab_size = max(drawable) + 1
        undrawn = tuple(index for index in range(vocab_size) if index not in drawable)
    # BERT-like tokenizers use other names for the ends of a sequence
    bos = _first(tokenizer, "bos", "cls")
    eos = _first(tokenizer, "eos", "sep")
    pad = tokenizer.pad_token_id
    first = [index for one in family.ends if (index := _id(tokenizer, one)) is not None]
    candidates = [eos, *first, *_several(generation.get("eos_token_id"))]
    ends = [
        one
        for one in dict.fromkeys(candidates)
        if one is not None and one < vocab_size and one not in undrawn
    ]
    return Special(
        vocab_size,
        mask,
        bos,
        eos,
        next((index for index in first if index != eos), None),
        pad,
        tuple(ends),
        undrawn,
        {index: tokens[index] for index in undrawn if index in tokens},
    )


def _id(tokenizer: Any, token: str | int) -> int | None:
    """Return the id of a token, or the id itself, if the tokenizer has it."""
    vocabulary = tokenizer.get_vocab()
    if isinstance(token, str):
        return vocabulary.get(token)
    return token if token in vocabulary.values() else None


def _first(tokenizer: Any, *roles: str) -> int | None:
    """Return the id of the first of these special tokens that the tokenizer has."""
    ids = (getattr(tokenizer, f"{role}_token_id") for role in roles)
    return next((index for index in ids if index is not None), None)


def _several(ids: Any) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
