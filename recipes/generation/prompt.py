"""Prompts: a beginning, a text with gaps, or none, as states in a row."""

import re
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from string import ascii_lowercase
from typing import NamedTuple, TypeGuard, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from ddlib.paces import Pace
from ddlib.samplers import Sampler
from recipes.data.unknown import LISTED, list_symbols
from recipes.generation.given import Conditions
from recipes.model_io import LoadedModel, ModelFiles

GAP = re.compile(r"\[MASK(?::([0-9]{1,9}))?\]")
LIKE_A_GAP = re.compile(r"[\[<({]\|?\s*mask\s*(?::[\s\d.,+-]*)?\|?[\]>)}]", re.IGNORECASE)
"""Spellings of a gap in other software, and numbers of tokens that are none."""

Conversation = Sequence[Mapping[str, str]]
"""Messages, each with its ``role`` and its ``content``."""
Prompt = str | Conversation | None
"""Beginning of a text, or a text with gaps; messages of a chat; None for none."""

NEW = 128
"""Default number of tokens behind a prompt, without another limit."""


@dataclass(frozen=True)
class Row:
    """States of one sequence to draw, part of which are given."""

    text: str | None
    """The prompt as it was given."""
    states: Int[Tensor, " n"]
    """Given states, with masks at free positions; all positions behind them are free too."""
    length: int
    """Tokens of the whole row."""
    first: int
    """Index where the text for the reader begins: behind the initial tokens; in a chat behind the
    message.
    """
    chat: bool = False
    """Whether it is the answer to a message."""
    lead: int = 0
    """Number of tokens at the front that the network encodes separately: sampling begins behind
    them.
    """
    prompted: int = 0
    """Number of states at the front that belong to the prompt: an end token before the last given
    one ends nothing.
    """

    def drafted(self, z: Int[Tensor, " L"]) -> Int[Tensor, " l"]:
        """Return the states to show while it is drawn, of those behind the lead."""
        return z[self.first if self.chat and not self.lead else 0 : self.length - self.lead]

    def end(self, tokens: Sequence[int], ends: Collection[int]) -> int:
        """Return the first position of ``ends`` behind the last given token of the prompt.

        Else the number of tokens.
        """
        prompt = self.states[: self.prompted].tolist()
        # states at gaps are masks, which are no tokens
        pairs = enumerate(zip(prompt, tokens, strict=False))
        given = [place for place, (state, token) in pairs if state == token]
        start = max([self.first, *(place + 1 for place in given)])
        return next((i for i in range(start, len(tokens)) if tokens[i] in ends), len(tokens))


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts of a call, which takes one of them or several.

    Raises:
        TypeError: neither a prompt nor a list.
    """
    if prompts is None or isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Mapping | Set) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts: {prompts!r} must be a text, a list of messages or of texts")
    several = list(prompts)
    return [several] if several and isinstance(several[0], Mapping) else several


def texts_of(prompt: Prompt) -> list[tuple[str, str]]:
    """Return the texts of a prompt with their names for messages."""
    if prompt is None:
        return []
    if isinstance(prompt, str):
        return [("prompt", prompt)]
    names = {"user": "prompt"}
    return [(names.get(one["role"], one["role"]), one["content"]) for one in prompt]


def check_prompt(prompt: Prompt) -> None:
    """Raise for a prompt that would be misread by any model.

    Raises:
        TypeError: neither a text nor messages, each with role and content.
        ValueError: no text; a gap in another spelling, of no token, or in a message of a chat; no
            message.
    """
    if isinstance(prompt, str):
        _check_prompt("prompt", prompt, False)
        return
    if prompt is None:
        return
    if not isinstance(prompt, Sequence):
        raise TypeError(f"prompt: {prompt!r} must be a text, messages of a chat, or None")
    if not prompt:
        raise ValueError("messages: must hold at least one")
    for one in prompt:
        if not isinstance(one, Mapping) or not all(
            isinstance(one.get(key), str) for key in ("role", "content")
        ):
            raise TypeError(f"messages: {one!r} must have a role and a content, both text")
    for name, text in texts_of(prompt):
        _check_prompt(name, text, True)


def _check_prompt(name: str, text: str, chat: bool) -> None:
    check_text(name, text)
    if match := LIKE_A_GAP.search(GAP.sub("", text)):
        raise ValueError(
            f"{name}: {match[0]} would be read as text; did you mean [MASK], or [MASK:3] for three?"
        )
    if chat and (match := GAP.search(text)):
        raise ValueError(f"{name}: {match[0]} is a gap, which a message cannot contain")
    for gap in GAP.finditer(text):
        if gap[1] and int(gap[1]) == 0:
            raise ValueError(f"{name}: {gap[0]} has no token, must have at least 1, as in [MASK:1]")


def check_whole(name: str, text: object) -> None:
    """Raise TypeError or ValueError unless a text is one without gaps."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: {text!r} must be a text")
    check_text(name, text)
    if match := GAP.search(text):
        raise ValueError(f"{name}: {match[0]} is a gap, must be a whole text; infill fills gaps")


def check_known(saved: ModelFiles, name: str, text: str, allowed: bool = False) -> None:
    """Raise for a text with symbols that the model's tokenizer lacks.

    Args:
        saved: the model.
        name: name of the argument, for messages.
        text: a text, which may have gaps.
        allowed: whether such symbols may become the unknown token, or be dropped without one.

    Raises:
        ValueError: naming the first ten symbols.
    """
    tokenizer = saved.symbols
    counts = Counter[str]()
    if tokenizer is None or (allowed and tokenizer.reads_all):
        return
    for part in GAP.split(text)[::2]:
        counts.update(tokenizer.unknown(part))
    if counts:
        accept = "; --unknown accepts them" if tokenizer.reads_all else ""
        raise ValueError(
            f"{name}: {counts.total()} symbols are not in the tokenizer of {saved.name} and "
            f"{tokenizer.become}: "
            f"{list_symbols(dict(counts.most_common(LISTED)))}{accept}"
        )


def check_text(name: str, text: str) -> None:
    """Raise ValueError for text from a shell that is not UTF-8: it has a surrogate for each such
    byte.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}={text!r}: must be text in UTF-8: {error}") from error


def read_prompts(path: Path) -> tuple[str, ...]:
    """Read the lines of a file that are not empty.

    Raises:
        OSError: there is none that can be read.
        ValueError: it holds no line of text.
    """
    try:
        prompts = tuple(
            line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()
        )
    except OSError as error:
        raise type(error)(f"prompts={path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"prompts={path}: must be text in UTF-8: {error}") from error
    if not prompts:
        raise ValueError(f"prompts={path}: must contain a prompt on each line")
    return prompts


def prompt_states(saved: LoadedModel, text: str, length: int) -> tuple[Int[Tensor, " n"], int]:
    """Return the given states, with masks at the free positions of a text with gaps, and the number
    of given ones.

    Text behind a gap continues it: no space is added. A text with gaps is a whole document: behind
    it come the end of text and, where the model was trained on padding behind it, padding up to
    ``length``. A text without gaps is a beginning: all positions behind it are free.

    Raises:
        ValueError: it is longer than ``length``; a gap where the process has no mask.
    """
    check_fits(sum(int(gap[1] or 1) for gap in GAP.finditer(text)), length)
    states = saved.beginning
    end = 0
    for gap in GAP.finditer(text):
        piece = text[end : gap.start()].removesuffix(" ")
        states += _encode_behind_gap(saved, piece) if end else saved.encode(piece)
        states += [saved.process.num_states - 1] * int(gap[1] or 1)
        end = gap.end()
    states += _encode_behind_gap(saved, text[end:]) if end else saved.encode(text)
    count = len(states)
    if end:
        check_gaps(saved)
    if end and saved.special.eos is not None:
        states.append(saved.special.eos)
    check_fits(len(states), length)
    if end and saved.rows == "padded":
        states += [saved.special.pad] * (length - len(states))
    if end and saved.rows == "exact" and not saved.draws_lengths and len(states) != length:
        raise ValueError(
            f"prompt: has {len(states)} symbols and gaps, must have {length}, the length of a "
            "sequence"
        )
    return torch.tensor(states, dtype=torch.int64), count


def _encode_behind_gap(saved: ModelFiles, text: str) -> list[int]:
    """Return the tokens of a text that continues another one.

    If the tokenizer puts a space before a text, they are those of a letter and the text, without
    those of the letter.
    """
    alone = saved.encode(text)
    decode = saved.tokenizer.decode
    symbols = saved.symbols
    reads_all = symbols is None or symbols.reads_all
    # the decoder may drop the first space
    spaces = text[: len(text) - len(text.lstrip())]
    decoded = spaces + decode(alone).lstrip()
    for letter in ascii_lowercase:  # some merge with the text
        joined = letter + text
        if not reads_all and any(map(symbols.unknown, (letter, joined))):
            continue
        front = saved.encode(letter)
        for tokens in (alone, saved.encode(joined)[len(front) :]):
            if decode([*front, *tokens]) == decode(front) + decoded:
                return tokens
    return alone


def has_gaps(prompt: Prompt) -> TypeGuard[str]:
    """Return whether a prompt is a text with gaps."""
    return isinstance(prompt, str) and GAP.search(prompt) is not None


def check_gaps(saved: ModelFiles) -> None:
    """Raise ValueError for a process without a mask, whose prompts cannot have gaps."""
    if not has_mask(saved):
        raise ValueError(f"prompt: has gaps, but {saved.process!r} has no mask for them")


def has_mask(saved: ModelFiles) -> bool:
    """Return whether single positions can be marked as free."""
    return saved.process.num_states > saved.process.vocab_size


def check_fits(count: int, length: int) -> None:
    """Raise ValueError for a prompt with more tokens than its row."""
    if count > length:
        raise ValueError(
            f"prompt: {count} tokens with its special ones, must be at most {length}, the "
            "length of the sequence"
        )


def row(
    saved: LoadedModel,
    prompt: Prompt,
    pace: Pace,
    length: int | None = None,
    new: int | None = None,
) -> Row:
    """Build the row for a prompt; it depends on no other prompt.

    Args:
        saved: the model.
        prompt: text of the prompt; messages of a chat, whose next one is drawn; None for an
            unconditional sample.
        pace: the schedule of positions: a row whose length is not given consists of whole blocks.
        length: tokens of the row; None for the model's length, or as many as required. Where
            sequences have different lengths and no end, that is the longest: ``drawn_length``
            replaces it.
        new: tokens after the prompt, instead of ``length``; the row is filled up to whole blocks of
            the pace.

    Raises:
        ValueError: a prompt that does not fit or leaves nothing to draw, more tokens than the model
            supports, or as in ``LoadedModel.chat``.
    """
    block = pace.block or 1
    saved.check_length(length)
    if has_gaps(prompt):
        states, count = prompt_states(saved, prompt, length or saved.length)
        if saved.rows == "free" and saved.behind is not None:
            more = torch.full((-len(states) % block,), saved.behind)
            states = torch.cat([states, more])
        return Row(prompt, states, len(states), len(saved.beginning), prompted=count)
    if prompt is None:
        stands = saved.beginning if saved.rows == "free" else []
    elif isinstance(prompt, str):
        stands = prompt_states(saved, prompt, length or saved.length)[0].tolist()
    else:
        stands = saved.encode(saved.chat(prompt))
    lead = len(stands) if saved.leads else 0
    if length is None and (new is not None or saved.rows == "free"):
        drawn = len(stands) + (NEW if new is None else new) - lead
        most = max(saved.length - lead, 0) // block * block
        if new is not None and drawn > most:
            blocks = f" in whole blocks of {block}" if block > 1 else ""
            raise ValueError(
                f"new={new}: {len(stands)} tokens precede them, and {saved.name} supports "
                f"{lead + most}{blocks}"
            )
        length = lead + min(-(-drawn // block) * block, most)
        saved.check_length(length)
    length = length or saved.length
    check_fits(len(stands), length)
    if prompt is not None and len(stands) == length:
        raise ValueError(
            f"prompt: its {length} tokens, with special ones, fill the sequence, so nothing would "
            "be drawn"
        )
    states = torch.tensor(stands, dtype=torch.int64)
    if prompt is None or isinstance(prompt, str):
        return Row(prompt, states, length, len(saved.beginning), False, lead, len(stands))
    return Row(prompt[-1]["content"], states, length, len(stands), True, lead, len(stands))


def drawn_length(saved: LoadedModel, row: Row, seed: int, number: int) -> Row:
    """Return the row of a sample with a length as training sequences have it, longer than the
    prompt.

    The length of the row is the largest.

    Args:
        saved: a model that ``draws_lengths``.
        row: the row of the prompt.
        seed: seed of the draw.
        number: number of the sample.
    """
    if saved.layout is None or (row.text is not None and GAP.search(row.text)):
        return row
    least = len(row.states) + 1
    return replace(row, length=saved.layout.draw_length(seed, number, least, row.length))


def with_context(
    saved: ModelFiles, row: Row, seed: int, number: int, conditions: Conditions
) -> Row:
    """Return the row of a sample without a prompt with its given tokens, where it has any.

    Args:
        saved: the model.
        row: the row of the prompt.
        seed: seed of the draw.
        number: number of the sample.
        conditions: given tokens of the samples.
    """
    states = conditions.states(seed, number, saved.process.num_states - 1)
    return replace(row, states=states) if row.text is None and len(states) else row


class Batch(NamedTuple):
    """Rows that are drawn in one batch."""

    states: Int[Tensor, "B P"] | None
    """Given and free states in the format of ``dd.sample``; None without given ones."""
    length: int
    """Length of the longest row."""
    lengths: Int[Tensor, " B"] | None
    """Length of each row, if they differ."""


def mask_row(saved: LoadedModel, row: Row) -> Int[Tensor, " n"]:
    """Return the states of a row, filled up with masks, so that rows of several prompts can be
    drawn in one batch.

    Without a mask in the process they stay unchanged.
    """
    more = row.length - len(row.states) if has_mask(saved) and len(row.states) else 0
    return torch.cat([row.states, torch.full((more,), saved.process.num_states - 1)])


def together(
    saved: LoadedModel,
    rows: Sequence[Row],
    block: int | None,
    sampler: Sampler,
    size: int,
    padding: bool = True,
) -> Iterator[list[int]]:
    """Yield indices of rows that can be drawn in one batch, at most ``size``, with the same result
    as each alone.

    If the network supports padding, these are rows of any length, the shorter ones padded at the
    end, provided that a position's noise does not depend on the row's length; otherwise those of
    one length.

    Args:
        saved: the model.
        rows: all requested rows.
        block: positions of a block of the pace, None for no blocks.
        sampler: the sampler.
        size: size of a batch.
        padding: whether rows of several lengths may share a batch.
    """
    states = [mask_row(saved, row) for row in rows]
    # a sampler that replaces a row by several sequences does not use the row's index
    pads = padding and saved.leaves_out and has_mask(saved) and sampler.guarantees.supports_stopping

    def alike(number: int) -> tuple[int, ...]:
        row_length = rows[number].length
        tokens = bool((states[number] < saved.process.vocab_size).any())
        # noise is split between blocks, where there are several
        return (
            (0, int(row_length == block))
            if pads and tokens
            else (1, row_length, len(states[number]))
        )

    by_length = sorted(range(len(rows)), key=lambda number: rows[number].length)
    for group in batches(by_length, alike, size):
        yield [by_length[place] for place in group]


def stack(saved: LoadedModel, rows: Sequence[Row]) -> Batch:
    """Stack rows of ``together`` into one batch; padding is a token of the row."""
    states = [mask_row(saved, row) for row in rows]
    lengths = torch.tensor([row.length for row in rows])
    longest = int(lengths.max())
    if bool((lengths == longest).all()):
        return Batch(torch.stack(states) if len(states[0]) else None, longest, None)
    filled = [
        torch.cat(
            [
                states_of_row,
                states_of_row[states_of_row < saved.process.vocab_size][:1].expand(
                    longest - len(states_of_row)
                ),
            ]
        )
        for states_of_row in states
    ]
    return Batch(torch.stack(filled), longest, lengths)


T = TypeVar("T")


def batches(items: Sequence[T], alike: Callable[[T], Hashable], size: int) -> Iterator[list[int]]:
    """Yield the indices of items that are alike, at most ``size`` together."""
    order = sorted(range(len(items)), key=lambda number: alike(items[number]))
    for _, members in groupby(order, key=lambda number: alike(items[number])):
        group = list(members)
        yield from (group[first : first + size] for first in range(0, len(group), size))
