"""The part of a text that no longer changes while the rest of it is drawn."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ddlib.samplers import Sampler
from recipes.generation.constrained import pieces
from recipes.generation.pipeline import Drawing
from recipes.generation.prompt import has_gaps
from recipes.generation.samples import until
from recipes.model_io import LoadedModel, ModelFiles

BROKEN = "\ufffd"
"""What a tokenizer writes for an incomplete character."""


def keeps_tokens(saved: ModelFiles, sampler: Sampler) -> bool:
    """Return whether no token changes once it is drawn."""
    tokens = torch.arange(saved.process.vocab_size, device=saved.process.device)[:, None]
    return sampler.guarantees.keeps_tokens and not bool(saved.process.replaceable(tokens).any())


def pieces_of(saved: LoadedModel) -> dict[int, bytes]:
    """Return the bytes of each token; empty if tokens are decoded jointly, as those of WordPiece:
    the text of the first tokens is then not the beginning of the whole text.
    """
    try:
        return pieces(saved)
    except ValueError:
        return {}


class SettledText:
    """The text of one sample so far, as far as it no longer changes.

    A position is settled if it holds a token that its sampler keeps, or if it lies in a block that
    is finished. The settled text is that of the settled positions in front of the first other one,
    without an incomplete character, and without an end that may be the beginning of a stop string.
    What is settled is the beginning of the result.

    Args:
        drawing: the samples.
        place: that of the sample among them.
        keeps: see ``keeps_tokens``.
        in_parts: whether the text of the first tokens is the beginning of the whole text;
            otherwise nothing is settled before the end.
    """

    def __init__(self, drawing: Drawing, place: int, keeps: bool, in_parts: bool) -> None:
        self._drawing = drawing
        self._sample = drawing.samples[place]
        self._keeps = keeps
        self._in_parts = in_parts
        self._front = self._sample.row.states[: self._sample.row.lead].tolist()
        self._before: Tensor | None = None
        self.tokens: list[int] = []
        """Tokens of the settled positions, from the front."""
        self.text = ""
        """Text of them."""
        self.ended = False
        """Whether the text ends within them: nothing behind them is shown."""

    def take(self, t: Tensor, z: Tensor) -> None:
        """Take the states and times of the row after a step: (L,) each, or one time."""
        row = self._sample.row
        finished = (t == 0).expand(z.shape)[: row.length - row.lead]
        z = z[: len(finished)]
        vocab_size = self._drawing.pipeline.model.process.vocab_size
        kept = torch.ones_like(finished) if self._keeps else torch.zeros_like(finished)
        if self._before is not None:  # the last step of a block may yet be changed by its end
            kept |= finished & self._before
        self._before = finished
        settled = (z < vocab_size) & kept
        count = len(self._front) + int(settled.long().cumprod(0).sum())
        given = len(row.states)
        if count > max(len(self.tokens), given):
            self.tokens = [*self._front, *z[: count - len(self._front)].tolist()]
            self._read()

    def _read(self) -> None:
        saved = self._drawing.pipeline.model
        options = self._drawing.options
        one = replace(self._sample, tokens=self.tokens)
        before, behind = one.parts(saved, options.max_new_tokens)
        stops = options.stop_strings
        text = until(behind, stops)
        new = options.max_new_tokens
        several = saved.rows == "wrapped" and not one.row.chat
        self.ended = (
            text != behind
            or (new is not None and len(self.tokens) >= len(one.row.states) + new)
            or (not several and one.row.end(self.tokens, saved.ends) < len(self.tokens))
        )
        if not self._in_parts:
            return
        if not self.ended:
            text = text[: len(text) - held(text, stops)]
        text = (before if options.return_full_text else "") + text
        self.text = text if self.ended else text.rstrip(BROKEN)


def held(text: str, stops: str | Sequence[str]) -> int:
    """Return the length of the longest end of a text that is the beginning of a stop string."""
    sizes = [
        size
        for stop in ([stops] if isinstance(stops, str) else stops)
        for size in range(1, len(stop))
        if text.endswith(stop[:size])
    ]
    return max(sizes, default=0)


def count_tokens(drawing: Drawing, place: int) -> int:
    """Return the number of tokens of a text that was drawn, without those of its prompt.

    Of a text that a stop string ends these are the tokens until the stop string is whole.
    """
    saved = drawing.pipeline.model
    one = drawing.samples[place]
    row = one.row
    if has_gaps(row.text) and not row.chat:
        return int((row.states == saved.process.num_states - 1).sum())
    first = len(row.states)
    tokens = one.limited(drawing.options.max_new_tokens)
    several = saved.rows == "wrapped" and not row.chat
    end = len(tokens) if several else row.end(tokens, saved.ends)
    stops = drawing.options.stop_strings

    def stopped(count: int) -> bool:
        text = replace(one, tokens=tokens[:count]).parts(saved)[1]
        return until(text, stops) != text

    if stops and stopped(end):
        end = bisect_left(range(end), True, lo=first, key=stopped)
    return max(end - first, 0)
