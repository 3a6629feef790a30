"""Samples of prompts: those to draw, and those that were drawn."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ddlib.contrib import Automaton, Film, Length
from ddlib.samplers import Sampler
from recipes.config import own_times
from recipes.generation.constrained import alike, start
from recipes.generation.given import Conditions
from recipes.generation.prompt import (
    GAP,
    Row,
    drawn_length,
    has_gaps,
    stack,
    together,
    with_context,
)
from recipes.generation.sampling import OnStep, Sampling, draw
from recipes.model_io import LoadedModel, make_sampler


@dataclass
class Sample:
    """A sample to draw."""

    row: Row
    number: int
    name: str
    """Name among the samples."""
    tokens: list[int] = field(default_factory=list)
    steps: int = 0
    """Steps in which it had positions to fill; counted if a rule finds its length."""
    film: Film | None = None

    def limited(self, new: int | None) -> list[int]:
        """Return the tokens, at most ``new`` of them behind the given ones."""
        return self.tokens if new is None else self.tokens[: len(self.row.states) + new]

    def shown_tokens(self, saved: LoadedModel, new: int | None = None) -> list[int]:
        """Return the tokens to show: without beginning and end; in a chat the answer.

        Args:
            saved: the model.
            new: largest number of tokens behind the given ones; None for all.
        """
        tokens = self.limited(new)
        if self.row.text is None:
            return saved.document(tokens)
        return tokens[self.row.first : self.row.end(tokens, saved.ends)]

    def text(self, saved: LoadedModel, new: int | None = None) -> str:
        """Return the text to show; of a row cut from the concatenation of texts all of them, with
        the ends between.
        """
        if saved.rows != "wrapped" or self.row.chat:
            return saved.tokenizer.decode(self.shown_tokens(saved, new))
        return saved.several(self.limited(new))

    def parts(self, saved: LoadedModel, new: int | None = None) -> tuple[str, str]:
        """Return the text of the prompt, and the text behind it: together that of ``text``.

        The first is empty in a chat, without a prompt, and for a prompt with gaps. A character that
        begins in the prompt is incomplete in both.
        """
        whole = self.text(saved, new)
        if self.row.text is None or self.row.chat or has_gaps(self.row.text):
            return "", whole
        prompt = self.row.states.tolist()
        before = (
            saved.several(prompt)
            if saved.rows == "wrapped"
            else saved.tokenizer.decode(prompt[self.row.first :])
        )
        if whole.startswith(before):
            return before, whole.removeprefix(before)
        shown = self.shown_tokens(saved, new)[len(prompt) - self.row.first :]
        return before, saved.tokenizer.decode(shown)

    def fills(self, saved: LoadedModel) -> list[list[int]]:
        """Return the tokens in each gap of the prompt."""
        if not has_gaps(self.row.text) or self.row.chat:
            return []
        free = (self.row.states == saved.process.num_states - 1).nonzero()[:, 0].tolist()
        drawn = iter([self.tokens[place] for place in free])
        sizes = [int(gap[1] or 1) for gap in GAP.finditer(self.row.text)]
        return [list(islice(drawn, size)) for size in sizes]

    def about(
        self, saved: LoadedModel, sampling: Sampling, seed: int, others: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return all settings that determine it except its number.

        ``others`` are those of the command.
        """
        settings = protocol(saved, sampling, seed, self.row.length - self.row.lead)
        return settings | {"prompt": self.row.text} | dict(others)


def until(text: str, stops: str | Sequence[str]) -> str:
    """Return the text before the first of the stops."""
    for stop in [stops] if isinstance(stops, str) else stops:
        text = text.split(stop)[0] if stop else text
    return text


def to_draw(
    saved: LoadedModel,
    rows: Sequence[Row],
    numbers: Sequence[int],
    seed: int,
    of_any_length: bool,
    conditions: Conditions,
) -> list[Sample]:
    """Return the samples of each prompt, by number.

    Args:
        saved: the model.
        rows: the row of each prompt.
        numbers: numbers of the samples.
        seed: seed of what a sample takes from the data.
        of_any_length: whether that is its length too.
        conditions: given tokens of samples without a prompt.
    """

    def made(row: Row, number: int) -> Row:
        row = drawn_length(saved, row, seed, number) if of_any_length else row
        return with_context(saved, row, seed, number, conditions)

    return [
        Sample(
            made(row, number),
            number,
            f"prompt {place}, sample {number}" if len(rows) > 1 else f"sample {number}",
        )
        for place, row in enumerate(rows)
        for number in numbers
    ]


def batched(
    saved: LoadedModel,
    samples: Sequence[Sample],
    sampling: Sampling,
    size: int,
    constrained: bool = False,
) -> Iterator[list[int]]:
    """Yield the indices of samples that are drawn in one batch, with the same result as each alone.

    Args:
        saved: the model.
        samples: all samples.
        sampling: options of the draws.
        size: largest size of a batch.
        constrained: whether there is a constraint on the text.
    """
    rows = [sample.row for sample in samples]
    sampler = make_sampler(saved, sampling.sampler)
    pace = sampling.pace_of(saved)
    block = pace.block
    if constrained:  # a constraint begins at one position
        yield from alike(saved, rows, block, sampler, size)
    else:  # a window with a cache takes no padding, but prompts of any length
        # without blocks the times of positions depend on the row's length
        lengths = {one.length - one.lead for one in rows}
        padding = block is not None or not any(own_times(pace, length) for length in lengths)
        yield from together(saved, rows, block, sampler, size, padding and sampling.keep is None)


def draw_batch(
    saved: LoadedModel,
    samples: Sequence[Sample],
    sampling: Sampling,
    seed: int,
    on_step: OnStep | None = None,
    sampler: Sampler | None = None,
    rule: Length | None = None,
    constraint: Automaton | None = None,
) -> Int[Tensor, "B L"]:
    """Draw the tokens of samples, each with the noise of its number.

    Args:
        saved: the model.
        samples: those of a batch of ``batched``; their tokens are set.
        sampling: options of the draws.
        seed: seed of the noise.
        on_step: see ``dd.sample``; gets the positions behind a ``lead``.
        sampler: see ``draw``.
        rule: see ``draw``.
        constraint: automaton of all texts.
    """
    rows = [sample.row for sample in samples]
    states, length, lengths = stack(saved, rows)
    index = torch.tensor([sample.number for sample in samples], device=saved.process.device)
    automaton = None if constraint is None else constraint.behind(start(saved, rows[0]))
    drawn = draw(
        saved,
        sampling,
        seed,
        index,
        length,
        states,
        on_step,
        sampler,
        lengths,
        rows[0].lead,
        rule,
        automaton,
    )
    for sample, tokens in zip(samples, drawn.tolist(), strict=True):
        sample.tokens = tokens[: sample.row.length]
    return drawn


def protocol(saved: LoadedModel, sampling: Sampling, seed: int, length: int) -> dict[str, Any]:
    """Return all values that determine a sample."""
    return {
        "checkpoint_sha256": saved.sha256,
        "ema": saved.ema,
        **asdict(sampling),
        "pace": repr(pace) if own_times(pace := sampling.order(saved, length), length) else None,
        "network_precision": saved.precision,
        "draw_precision": "float64",
        "length": length,
        "seed": seed,
    }
