"""Samples of prompts: those to draw, and those that were drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ddlib.contrib import Film
from recipes.config import own_times
from recipes.generation.prompt import Row, drawn_length
from recipes.generation.sampling import Sampling
from recipes.model_io import LoadedModel


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

    def shown_tokens(self, saved: LoadedModel) -> list[int]:
        """Return the tokens to show: without beginning and end; in a chat the answer."""
        if self.row.text is None:
            return saved.document(self.tokens)
        return self.tokens[self.row.first : self.row.end(self.tokens, saved.ends)]

    def text(self, saved: LoadedModel) -> str:
        """Return the text to show; of a row cut from the concatenation of texts all of them, with
        the ends between.
        """
        if saved.rows != "wrapped" or self.row.chat:
            return saved.tokenizer.decode(self.shown_tokens(saved))
        return saved.several(self.tokens)

    def about(
        self, saved: LoadedModel, sampling: Sampling, seed: int, others: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return all settings that determine it except its number.

        ``others`` are those of the command.
        """
        settings = protocol(saved, sampling, seed, self.row.length - self.row.lead)
        return settings | {"prompt": self.row.text} | dict(others)


def to_draw(
    saved: LoadedModel, rows: Sequence[Row], numbers: Sequence[int], seed: int | None
) -> list[Sample]:
    """Return the samples of each prompt, by number; with a seed each has a length drawn with it."""
    return [
        Sample(
            row if seed is None else drawn_length(saved, row, seed, number),
            number,
            f"prompt {place}, sample {number}" if len(rows) > 1 else f"sample {number}",
        )
        for place, row in enumerate(rows)
        for number in numbers
    ]


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
