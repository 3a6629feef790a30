"""Bound or exact likelihood of texts, each measured as ``recipes.evaluate`` does."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

import ddlib as dd
from ddlib.samplers import Sampler
from recipes.config import IN_STRATA, at_once, time_density
from recipes.data import Batch
from recipes.engine.validation import quietest
from recipes.metrics import Terms, measure, read
from recipes.model_io import LoadedModel, blocks_of

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Score:
    """Nats of a text under a model."""

    nats: dd.Measure
    """-log p of the text or its bound, in nats, with the standard error over draws of time and
    noise. An exact value has the error 0.

    Where the model has padded rows, an exact value is that of the text given its length, and the
    terms of the bound at padding are not counted: see ``recipes.metrics.Terms.with_padding``."""
    tokens: int
    """Number of tokens that are measured; the beginning of a text is not, where it is given."""
    exact: bool
    """Whether it is -log p itself, by the order of the call."""

    @property
    def per_token(self) -> dd.Measure:
        """Nats per token."""
        return _scaled(self.nats, 1 / self.tokens, "nats/token")


def document(saved: LoadedModel, text: str) -> Tokens:
    """Return the tokens of a text between its beginning and its end, as in training.

    Raises:
        ValueError: no token, or not as many as the sequences of the model have.
    """
    end = [] if saved.special.eos is None else [saved.special.eos]
    tokens = (*saved.beginning, *saved.encode(text), *end)
    least = 1 + (len(saved.beginning) if saved.rows == "free" else 0)
    if not least <= len(tokens) <= saved.length:
        raise ValueError(
            f"texts: {text!r} has {len(tokens)} tokens with its special ones, must have {least} to "
            f"{saved.length}, as the sequences of {saved.name}"
        )
    if not saved.draws_lengths:
        saved.check_length(len(tokens))
    return tokens


def bound(saved: LoadedModel, tokens: Tokens, draws: int, seed: int, size: int) -> Score:
    """Return the bound of a text: the mean over draws of noise at stratified times.

    The noise is that of the seed and the text: equal texts have the same.

    Args:
        saved: the model.
        tokens: those of ``document``.
        draws: number of draws.
        seed: seed of times and noise.
        size: number of draws in a call.
    """
    digest = hashlib.sha256(repr(tokens).encode()).digest()
    begins = _begins(saved)
    length = saved.length if saved.rows == "padded" else len(tokens)
    whole = -(-(length - saved.leads) // (saved.pace.block or 1)) * (saved.pace.block or 1)
    density = time_density("optimal", saved.process, whole, IN_STRATA, saved.pace)
    levels = quietest(saved.process, saved.pace, whole)
    indices = [range(first, min(first + size, draws)) for first in range(0, draws, size)]
    terms = measure(
        saved.process,
        saved.denoiser,
        (_batch(saved, [tokens] * len(index), index) for index in indices),
        seed,
        int.from_bytes(digest[:8], "big") >> 2,
        saved.parameterization,
        density,
        levels=levels,
        pace=saved.pace,
        at_once=at_once(saved.pace, saved.denoiser),
        alone=begins,
        leads=saved.leads,
        ragged=saved.rows != "padded" and not begins,
    )
    caveat = dd.variance_caveat(saved.process, density, whole, levels=levels, pace=saved.pace)
    return _score(terms, replace(terms.per_token, caveat=caveat), False)


def likelihood(
    saved: LoadedModel, texts: Sequence[Tokens], order: Sampler, size: int
) -> Iterator[Score]:
    """Yield the exact likelihood of each text by an order, with a network call per edge.

    Args:
        saved: the model.
        texts: tokens of ``document``.
        order: the order, see ``recipes.model_io.make_order``.
        size: number of texts in a call.
    """
    for first in range(0, len(texts), size):
        part = texts[first : first + size]
        terms, _ = read(
            saved.process,
            saved.denoiser,
            [_batch(saved, part, range(len(part)))],
            order,
            None,
            len(part),
            saved.rows != "padded",
            saved.parameterization,
            _begins(saved),
            pace=blocks_of(saved, saved.pace),
        )
        for place in range(len(part)):
            row = terms.at(torch.tensor([place]))
            yield _score(row, replace(row.per_token, standard_error=0.0), True)


def _begins(saved: LoadedModel) -> bool:
    """Return whether the beginning of a text is given."""
    return saved.rows == "free" and bool(saved.beginning)


def _batch(saved: LoadedModel, texts: Sequence[Tokens], index: Sequence[int]) -> Batch:
    """Return a batch with a row for each text, with padding behind it."""
    sizes = torch.tensor([len(tokens) for tokens in texts])
    length = saved.length if saved.rows == "padded" else int(sizes.max())
    x = torch.full((len(texts), length), saved.special.pad or 0)
    for row, tokens in zip(x, texts, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    mask = torch.arange(length) < sizes[:, None]
    free = torch.ones_like(mask)
    return Batch(x, mask, free, torch.tensor(index)).to(saved.process.device)


def _score(terms: Terms, per_token: dd.Measure, exact: bool) -> Score:
    tokens = int(terms.tokens[0])
    return Score(_scaled(per_token, tokens, "nats"), tokens, exact)


def _scaled(measure: dd.Measure, factor: float, unit: str) -> dd.Measure:
    return replace(
        measure,
        value=measure.value * factor,
        standard_error=measure.standard_error * factor,
        unit=unit,
    )
