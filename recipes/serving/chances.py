"""Log-probabilities of the tokens of a text, where its order makes them exact."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ddlib.contrib import Film
from ddlib.samplers import LeftToRight, Sampler
from recipes.generation.pipeline import Drawing
from recipes.generation.prompt import has_gaps
from recipes.serving.requests import RefusedError


class Chance(NamedTuple):
    """Probability of a token, given all tokens before it and nothing behind it."""

    token: int
    nats: float
    """log p, at most 0."""
    others: tuple[tuple[int, float], ...]
    """The likeliest tokens at its place with their log-probabilities, the likeliest first."""


def check_exact(drawing: Drawing, sampler: Sampler, keeps: bool) -> None:
    """Check that tokens are drawn one at a time from left to right.

    Only then is the probability that the network gives a token p(token | those before), and their
    product the likelihood of the text.

    Args:
        drawing: the samples.
        sampler: their sampler.
        keeps: whether no token changes once it is drawn.

    Raises:
        RefusedError: naming what is different.
    """
    saved = drawing.pipeline.model
    sampling = drawing.options.sampling
    pace = sampling.pace_of(saved)
    rows = [sample.row for sample in drawing.samples]
    needed = max((row.length - len(row.states) for row in rows), default=0)
    needed = min(needed, pace.block or needed)
    reason = ""
    if type(sampler) is not LeftToRight:
        reason = (
            f"the sampler of this server is {sampler!r}, must be left_to_right: in another order "
            "the probability of a token is not that given the tokens before it"
        )
    elif not keeps or len(saved.process.levels) != 2:
        reason = f"the process is {saved.process!r}, must have tokens and masks alone"
    elif any(has_gaps(row.text) and not row.chat for row in rows):
        reason = "not with gaps in a prompt, whose tokens depend on those behind them too"
    elif drawing.automaton is not None or sampling.repetition_penalty != 1:
        reason = "not with response_format or repetition_penalty, which change probabilities"
    elif sampling.steps < needed:
        reason = (
            f"steps={sampling.steps} must be at least {needed}, one for each token of "
            f"{'a block' if pace.block else 'the row'}"
        )
    if reason:
        raise RefusedError(f"logprobs: {reason}", "logprobs")


def chances(drawing: Drawing, place: int, film: Film, count: int) -> Sequence[Chance]:
    """Return the probabilities of the tokens of a text that was drawn, of the first ``count``."""
    row = drawing.samples[place].row
    events = {event.position + row.lead: event for frame in film.frames for event in frame.events}
    first = len(row.states)
    return [
        Chance(one.state, _log(one.chance or 0.0), tuple((n, _log(p)) for n, p in one.others))
        for one in map(events.__getitem__, range(first, first + count))
    ]


def _log(chance: float) -> float:
    return math.log(chance) if chance > 0 else -math.inf
