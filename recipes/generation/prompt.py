"""What is to be drawn: a text that begins, one with gaps, or nothing yet, as states in a row."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from ddlib.paces import Pace
from ddlib.samplers import Sampler
from recipes.data.unknown import LISTED, listed
from recipes.generation.sampling import batches
from recipes.model_io import LoadedModel

GAP = re.compile(r"\[MASK(?::(\d+))?\]")
LIKE_A_GAP = re.compile(r"[\[<({]\|?\s*mask\s*(?::\s*\d*\s*)?\|?[\]>)}]", re.IGNORECASE)
"""What others write for one."""

NEW = 128
"""Tokens behind a prompt, where neither the model nor anybody else says how many."""


@dataclass(frozen=True)
class Row:
    """A row of which a part stands."""

    text: str | None
    """The prompt as it was given."""
    states: Int[Tensor, " n"]
    """What stands, with masks where it is free; what follows them is free too."""
    length: int
    """Tokens of the whole row."""
    first: int
    """Where the text begins that a reader looks for: behind its beginning; of a chat behind the message."""
    chat: bool = False
    """Whether it is the answer to a message."""
    lead: int = 0
    """Words at its front that the network reads apart: what is drawn begins behind them."""
    said: int = 0
    """States at its front that are the prompt's own: an end of a text among them ends nothing."""

    def end(self, words: Sequence[int], ends: Collection[int]) -> int:
        """Position of the first of ``ends`` in the text, but those that the prompt said; else the number of words."""
        own = self.states[: self.said].tolist()
        places = range(self.first, len(words))
        return next((i for i in places if words[i] in ends and own[i : i + 1] != [words[i]]), len(words))


def check_prompt(text: str, chat: bool = False) -> None:
    """Refuses what would not be read as it is meant.

    Raises:
        ValueError: no text; a gap in another spelling than ours, or in a message of a chat.
    """
    check_text("prompt", text)
    if found := LIKE_A_GAP.search(GAP.sub("", text)):
        raise ValueError(f"prompt: {found[0]} would be read as text; did you mean [MASK], or [MASK:3] for three?")
    if chat and (found := GAP.search(text)):
        raise ValueError(f"prompt: {found[0]} is a gap, and a message has none: leave out --chat, or the gap")


def check_known(saved: LoadedModel, name: str, text: str, allowed: bool = False) -> None:
    """Refuse a text with symbols that the model's tokenizer does not have.

    Args:
        saved: the model.
        name: of the argument, for messages.
        text: which may have gaps.
        allowed: whether such symbols may become the unknown token, or be left out where there is none.

    Raises:
        ValueError: naming the first ten symbols.
    """
    tokenizer, found = saved.symbols, Counter[str]()
    if tokenizer is None or (allowed and tokenizer.reads_all):
        return
    for part in GAP.split(text)[::2]:
        found.update(tokenizer.unknown(part))
    if found:
        accept = "; --unknown lets them pass" if tokenizer.reads_all else ""
        raise ValueError(
            f"{name}: {found.total()} symbols are none of the tokenizer of {saved.name} and {tokenizer.become}: "
            f"{listed(dict(found.most_common(LISTED)))}{accept}"
        )


def check_text(name: str, text: str) -> None:
    """Raises ValueError for what a shell gave that is no UTF-8: half a character stands in it for each such byte."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}={text!r}: must be text in UTF-8: {error}") from error


def read_prompts(path: Path) -> tuple[str, ...]:
    """The lines of a file that are not empty.

    Raises:
        OSError: there is none that can be read.
        ValueError: it holds no line of text.
    """
    try:
        found = tuple(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise ValueError(f"prompts={path}: is no text in UTF-8: {error}") from error
    if not found:
        raise ValueError(f"prompts={path}: holds no line of text, must hold a prompt on each")
    return found


def prompt_states(saved: LoadedModel, text: str, length: int) -> tuple[Int[Tensor, " n"], int]:
    """What stands and what is free: words, and the mask at every free position of a text with gaps; how much is said.

    A text with gaps is a whole document: behind it come the end of text and, where the model knows texts with padding
    behind them, that up to ``length``. A text without gaps is a beginning: what follows it is free.

    Raises:
        ValueError: it is longer than ``length``; a gap where the process has no mask.
    """
    states, end = saved.beginning, 0
    for gap in GAP.finditer(text):
        states += saved.encode(text[end : gap.start()].removesuffix(" "))
        states += [saved.process.num_states - 1] * int(gap[1] or 1)
        end = gap.end()
    states += saved.encode(text[end:])
    said = len(states)
    if end and not has_mask(saved):
        raise ValueError(f"prompt: has gaps, and {saved.process!r} no mask that could stand there")
    if end and saved.special.eos is not None:
        states.append(saved.special.eos)
    check_fits(states, length)
    if end and saved.rows == "padded":
        states += [saved.special.pad] * (length - len(states))
    return torch.tensor(states, dtype=torch.int64), said


def has_mask(saved: LoadedModel) -> bool:
    """Whether a position may be said to be free among others that stand."""
    return saved.process.num_states > saved.process.vocab_size


def check_fits(states: Sequence[int], length: int) -> None:
    """Raises ValueError for a prompt that is longer than its row."""
    if len(states) > length:
        raise ValueError(f"prompt: {len(states)} tokens with its special ones, the sequence has only {length}")


def row(
    saved: LoadedModel,
    text: str | None,
    pace: Pace,
    length: int | None = None,
    new: int | None = None,
    chat: bool = False,
    system: str | None = None,
) -> Row:
    """The row for a prompt; it depends on no other prompt.

    Args:
        saved: the model.
        text: of the prompt; None for a text from nothing.
        pace: which position when: where rows are as long as their texts they are of whole blocks.
        length: tokens of the row; None for those that the model knows, or as many as it takes.
        new: tokens behind the prompt, in its place.
        chat: whether the prompt is what a user says to the model, whose answer is drawn.
        system: what is said to the model before.

    Raises:
        ValueError: a prompt that does not fit or leaves nothing to draw, more tokens than the model knows, or as
            ``LoadedModel.chat``.
    """
    block = pace.block or 1
    if saved.rows == "free" and length is not None and length > saved.length:
        raise ValueError(f"length={length}: must be at most {saved.length}, which {saved.name} knows")
    if text is not None and GAP.search(text):
        states, said = prompt_states(saved, text, length or saved.length)
        if saved.rows == "free" and saved.behind is not None:
            more = torch.full((-len(states) % block,), saved.behind)
            states = torch.cat([states, more])
        return Row(text, states, len(states), len(saved.beginning), said=said)
    if chat:
        before = [] if system is None else [{"role": "system", "content": system}]
        stands = saved.encode(saved.chat([*before, {"role": "user", "content": text or ""}]))
    elif text is None:
        stands = saved.beginning if saved.rows == "free" else []
    else:
        stands = prompt_states(saved, text, length or saved.length)[0].tolist()
    lead = len(stands) if saved.leads else 0
    if length is None:
        asked = None if new is None else len(stands) + new
        if saved.rows == "free":
            drawn = (asked or len(stands) + NEW) - lead
            most = max(saved.length - lead, 0) // block * block
            if new is not None and drawn > most:
                blocks = f" in whole blocks of {block}" if block > 1 else ""
                raise ValueError(
                    f"new={new}: {len(stands)} tokens stand before them, and {saved.name} knows {lead + most}{blocks}"
                )
            asked = lead + min(-(-drawn // block) * block, most)
        length = asked or saved.length
    check_fits(stands, length)
    if text is not None and len(stands) == length:
        raise ValueError(
            f"prompt: its {length} tokens, with special ones, fill the sequence, so nothing would be drawn"
        )
    first = len(stands) if chat else len(saved.beginning)
    return Row(text, torch.tensor(stands, dtype=torch.int64), length, first, chat, lead, len(stands))


class Batch(NamedTuple):
    """Rows that are drawn together."""

    states: Int[Tensor, "B P"] | None
    """What stands and what is free, as ``dd.sample`` takes them; None where nothing stands."""
    length: int
    """Tokens of the longest."""
    lengths: Int[Tensor, " B"] | None
    """Tokens of each, where they are not the same."""


def masked(saved: LoadedModel, row: Row) -> Int[Tensor, " n"]:
    """The states of a row, filled up with masks, so that rows of several prompts can be drawn together.

    Where the process has no mask they stay as they are.
    """
    more = row.length - len(row.states) if has_mask(saved) and len(row.states) else 0
    return torch.cat([row.states, torch.full((more,), saved.process.num_states - 1)])


def together(
    saved: LoadedModel, rows: Sequence[Row], block: int | None, sampler: Sampler, size: int
) -> Iterator[list[int]]:
    """Numbers of rows that can be drawn together, at most ``size``: each is what it is alone.

    Where the network can leave positions out these are rows of any length, the shorter ones with padding behind them,
    where a position's noise does not depend on how long the row is; else those of one length.

    Args:
        saved: the model.
        rows: all that are asked for.
        block: positions of a block of the pace, None for no blocks.
        sampler: what draws.
        size: of a batch.
    """
    states = [masked(saved, row) for row in rows]
    # a sampler that puts several texts in the place of a row is not asked about it by its number
    pads = saved.leaves_out and has_mask(saved) and sampler.supports_stopping

    def alike(number: int) -> tuple[int, ...]:
        own, words = rows[number].length, bool((states[number] < saved.process.vocab_size).any())
        # noise is split between blocks, where there are several
        return (0, int(own == block)) if pads and words else (1, own, len(states[number]))

    by_length = sorted(range(len(rows)), key=lambda number: rows[number].length)
    for group in batches(by_length, alike, size):
        yield [by_length[place] for place in group]


def stacked(saved: LoadedModel, rows: Sequence[Row]) -> Batch:
    """Rows that ``together`` found, as one batch; padding is a word that stands in the row."""
    states, lengths = [masked(saved, row) for row in rows], torch.tensor([row.length for row in rows])
    longest = int(lengths.max())
    if bool((lengths == longest).all()):
        return Batch(torch.stack(states) if len(states[0]) else None, longest, None)
    filled = [torch.cat([own, own[own < saved.process.vocab_size][:1].expand(longest - len(own))]) for own in states]
    return Batch(torch.stack(filled), longest, lengths)
