"""Bound or likelihood of a corpus, sequence by sequence, independent of batch size and number of
processes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

import ddlib as dd
from ddlib.typing import Denoiser
from recipes.data import Batch
from recipes.metrics.conditioned import with_labels, with_tokens

COLUMNS = (
    "index",
    "nats",
    "tokens",
    "times",
    "apart",
    "labels",
    "by_field",
    "field_tokens",
    "padding",
)
"""Fields of ``Terms`` with a row for each sequence."""


@dataclass(frozen=True)
class Terms:
    """Measurements of every sequence, on the CPU, in the order of the corpus."""

    index: Int[Tensor, " N"]
    nats: Float[Tensor, "N terms"]
    """Sums over the sequence's real tokens: for a bound diffusion, prior, reconstruction; -log p(x)
    alone.
    """
    tokens: Int[Tensor, " N"]
    draws: int = 1
    """Number of draws of time and noise, over which the nats are the mean."""
    times: Float[Tensor, "N draws"] | None = None
    """Time of each draw, or its place on the path of a pace, stratified over the corpus; None
    without one time.
    """
    apart: Float[Tensor, "N draws terms"] | None = None
    """The nats draw by draw, where there are several."""
    labels: Int[Tensor, " N"] | None = None
    """Index of the class of each sequence; None without labels."""
    by_field: Float[Tensor, "N draws F"] | None = None
    """The sum of the terms over the positions of each field, draw by draw; None for one field."""
    field_tokens: Int[Tensor, "N F"] | None = None
    """Number of tokens of each field that are measured; None for one field."""
    padding: Float[Tensor, "N draws"] | None = None
    """The sum of the terms at padding, draw by draw; None if no row has a place for it."""

    @classmethod
    def join(cls, parts: Iterable["Terms"]) -> "Terms":
        """Concatenate all parts, in the order of the corpus."""
        parts = list(parts)
        columns = {name: [getattr(part, name) for part in parts] for name in COLUMNS}
        whole = {
            name: None if any(v is None for v in values) else torch.cat(values)
            for name, values in columns.items()
        }
        return cls(**whole, draws=parts[0].draws).at(whole["index"].argsort(stable=True))

    @classmethod
    def average(cls, replicates: Sequence["Terms"]) -> "Terms":
        """Average several draws for the same sequences."""
        nats = torch.stack([r.nats for r in replicates]).mean(0)
        times = None
        if all(r.times is not None for r in replicates):
            times = torch.cat([r.times for r in replicates], 1)
        apart = torch.cat([r.nats[:, None] if r.apart is None else r.apart for r in replicates], 1)
        fields = [r.by_field for r in replicates if r.by_field is not None]
        paddings = [r.padding for r in replicates if r.padding is not None]
        return replace(
            replicates[0],
            nats=nats,
            draws=sum(r.draws for r in replicates),
            times=times,
            apart=apart,
            by_field=torch.cat(fields, 1) if fields else None,
            padding=torch.cat(paddings, 1) if paddings else None,
        )

    def first(self, n: int) -> "Terms":
        """Select the sequences with an index below ``n``, each once."""
        keep = self.index < n
        keep[1:] &= self.index[1:] != self.index[:-1]
        return self.at(keep)

    def at(self, rows: Tensor) -> "Terms":
        """Select some of the sequences."""
        return replace(
            self,
            **{n: None if getattr(self, n) is None else getattr(self, n)[rows] for n in COLUMNS},
        )

    @property
    def drawn(self) -> Float[Tensor, "N draws terms"]:
        """Return the nats draw by draw."""
        return self.nats[:, None] if self.apart is None else self.apart

    @property
    def basis(self) -> str:
        """Description of the sample behind the numbers, shown beside them."""
        return basis(len(self.index), self.draws)

    @property
    def per_token(self) -> dd.Measure:
        """Return the sum of the terms in nats per token; its standard error is over sequences."""
        return self._ratio(self.drawn.sum(-1))

    @property
    def with_padding(self) -> dd.Measure | None:
        """The sum of the terms of tokens and padding in nats per token; None without padding.

        This is an upper bound on -log p of the sequences. The sum over tokens alone is not: padding
        that is revealed tells where a sequence ends, and what that costs is in the terms at
        padding.
        """
        if self.padding is None or not bool(self.padding.any()):
            return None
        return self._ratio(self.drawn.sum(-1) + self.padding)

    def term(self, number: int) -> dd.Measure:
        """Return one of the terms in nats per token."""
        return self._ratio(self.drawn[..., number])

    def of_field(self, number: int) -> dd.Measure:
        """Return the terms of a field in nats per token of the field."""
        tokens = self.field_tokens[:, number].double()
        return dd.Measure.ratio(self.by_field[..., number], tokens, "nats/token", self.times)

    def _ratio(self, nats: Float[Tensor, "N draws"]) -> dd.Measure:
        return dd.Measure.ratio(nats, self.tokens.double(), "nats/token", self.times)


def basis(sequences: int, draws: int, noun: str = "text") -> str:
    """Describe the sample of a bound: number of sequences, and of draws of time and noise
    for each.
    """
    return f"{sequences:,} {noun}{'s' * (sequences != 1)} x {draws} draw{'s' * (draws != 1)}"


def by_length(
    batch: Batch, block: int = 1, leads: bool = False, given: bool = True
) -> Iterator[Batch]:
    """Yield the sequences of a batch without their padding, equally long ones together.

    Args:
        batch: batch of unpacked sequences.
        block: rows are whole blocks of this size, filled up with copies of the last token, which
            are given too.
        leads: whether the first token is outside of their blocks.
        given: whether the first token is given, and not measured.
    """
    lengths = batch.mask.sum(1)
    for length in lengths.unique().tolist():
        rows = lengths == length
        x = batch.x[rows, :length]
        more = (leads - length) % block
        x = torch.cat([x, x[:, -1:].expand(-1, more)], 1)
        mask = torch.ones_like(x, dtype=torch.bool)
        mask[:, length:] = False
        mask[:, : int(given)] = False
        free = F.pad(batch.free[rows, :length], (0, more))
        labels = None if batch.labels is None else batch.labels[rows]
        yield Batch(x, mask, free, batch.index[rows], labels=labels)


def sum_fields(
    nats: Float[Tensor, "B L"], mask: Bool[Tensor, "B L"], field: Int[Tensor, "B L"], count: int
) -> dict[str, Tensor]:
    """Return ``by_field`` and ``field_tokens`` of ``Terms`` for one draw.

    Args:
        nats: of each position.
        mask: True at tokens that are measured.
        field: number of the field of each position.
        count: number of fields.
    """
    sums = [
        values.new_zeros(len(values), count).scatter_add(1, field, values).cpu()
        for values in (torch.where(mask, nats, 0.0), mask.long())
    ]
    return {"by_field": sums[0][:, None], "field_tokens": sums[1]}


@torch.no_grad()
def measure(
    process: dd.processes.ForwardProcess,
    denoiser: Denoiser,
    batches: Iterable[Batch],
    seed: int,
    replicate: int,
    parameterization: str | dd.Children = "cavity",
    density: dd.times.TimeDensity | None = None,
    steps: int | None = None,
    levels: str = "independent",
    pace: dd.paces.Pace | None = None,
    at_once: bool = False,
    alone: bool = False,
    leads: bool = False,
    ragged: bool = False,
) -> Terms:
    """Draw time and noise once for every sequence, stratified over the corpus, weights unclipped.

    Args:
        process: the noise.
        denoiser: ``(z, t) -> logits``.
        batches: batches of unpacked sequences; padding is noised, and its terms are apart. Their
            labels are given to a network that takes labels: the bound is then that of the sequence
            given its label.
        seed: seed of times and noise.
        replicate: number of the draw; others are independent.
        parameterization: meaning of the logits.
        density: density of the times; None is uniform.
        steps: steps of the bound in discrete time; None for continuous time.
        levels: coupling of the noise between tokens of a sequence, as in ``ddlib.bound``.
        pace: the schedule of positions, likewise.
        at_once: whether every block of a sequence has a separate draw, likewise.
        alone: whether each sequence has a row of its length, its first token given: see ``given``.
        leads: whether that token is encoded separately, by ``denoiser.after``.
        ragged: whether each sequence has a row of its length, all tokens of which are measured.

    Raises:
        ValueError: no sequence at all; as in ``ddlib.bound``.
    """
    parts = []
    block = 1 if pace is None else pace.block or 1
    if alone or ragged:
        batches = chain.from_iterable(
            by_length(batch, block, leads, given=alone) for batch in batches
        )
    for batch in batches:
        noise = dd.KeyedGenerator(seed, replicate, batch.index, scattered=alone or ragged)
        network = with_labels(denoiser, batch.labels)
        if leads:
            network = denoiser.after(batch.x[:, :1])
            x, mask, free = (part[:, 1:] for part in (batch.x, batch.mask, batch.free))
            batch = Batch(x, mask, free, batch.index, labels=batch.labels)
        if alone:
            network = with_tokens(network, batch.x, ~batch.mask)
        mask = batch.mask & batch.free
        bound = dd.bound(
            process,
            network,
            batch.x,
            noise,
            density=density,
            parameterization=parameterization,
            steps=steps,
            levels=levels,
            pace=pace,
            at_once=at_once,
            # rows of given tokens alone have no bound: theirs is not measured
            given=~batch.free if bool(mask.any()) else None,
        )
        terms = torch.stack([bound.diffusion, bound.prior, bound.reconstruction], -1).double()
        nats = torch.where(mask[..., None], terms, 0.0).sum(1)
        times = None if bound.times is None else bound.times.double().cpu()[:, None]
        labels = None if batch.labels is None else batch.labels.cpu()
        columns = {"times": times, "labels": labels}
        if not (alone or ragged):
            behind = torch.where((batch.free & ~batch.mask)[..., None], terms, 0.0)
            columns["padding"] = behind.sum((1, 2))[:, None].cpu()
        if len(process.components) > 1:
            field = process.component_of(process.tokens_as_states(batch.x))
            columns |= sum_fields(terms.sum(-1), mask, field, len(process.components))
        parts.append(Terms(batch.index.cpu(), nats.cpu(), mask.sum(1).cpu(), **columns))
    if not parts:
        raise ValueError("batches: must contain at least one sequence")
    return Terms.join(parts)
