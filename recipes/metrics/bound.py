"""The bound of a corpus or its likelihood, sequence by sequence: whatever the batch size and number of processes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

import ddlib as dd
from ddlib.parameterization.logits import Parameterization
from ddlib.typing import Denoiser
from recipes.data import Batch
from recipes.metrics.conditioned import given


@dataclass(frozen=True)
class Terms:
    """What was measured of every sequence, on the CPU, in the order of the corpus."""

    index: Int[Tensor, " N"]
    nats: Float[Tensor, "N terms"]
    """Sums over the sequence's real tokens: of a bound diffusion, prior, reconstruction; -log p(x) alone."""
    tokens: Int[Tensor, " N"]
    draws: int = 1
    """Of time and noise, over which the nats are the mean."""
    times: Float[Tensor, "N draws"] | None = None
    """Of each draw, or its place on the path of a pace, stratified over the corpus; None of what has none, or many."""
    apart: Float[Tensor, "N draws terms"] | None = None
    """The nats draw by draw, where there are several."""

    @classmethod
    def join(cls, parts: Iterable["Terms"]) -> "Terms":
        """All parts as one, in the order of the corpus."""
        parts = list(parts)
        columns = ("index", "nats", "tokens", "times", "apart")
        given = {name: [getattr(part, name) for part in parts] for name in columns}
        whole = {name: None if any(v is None for v in values) else torch.cat(values) for name, values in given.items()}
        return cls(**whole, draws=parts[0].draws)._at(whole["index"].argsort(stable=True))

    @classmethod
    def average(cls, replicates: Sequence["Terms"]) -> "Terms":
        """The mean of several draws for the same sequences."""
        nats = torch.stack([r.nats for r in replicates]).mean(0)
        times = None
        if all(r.times is not None for r in replicates):
            times = torch.cat([r.times for r in replicates], 1)
        apart = torch.cat([r.nats[:, None] if r.apart is None else r.apart for r in replicates], 1)
        return replace(replicates[0], nats=nats, draws=sum(r.draws for r in replicates), times=times, apart=apart)

    def first(self, n: int) -> "Terms":
        """The sequences with an index below ``n``, each once."""
        keep = self.index < n
        keep[1:] &= self.index[1:] != self.index[:-1]
        return self._at(keep)

    def _at(self, rows: Tensor) -> "Terms":
        """Some of the sequences."""
        held = ("index", "nats", "tokens", "times", "apart")
        return replace(self, **{n: None if getattr(self, n) is None else getattr(self, n)[rows] for n in held})

    @property
    def drawn(self) -> Float[Tensor, "N draws terms"]:
        """The nats draw by draw."""
        return self.nats[:, None] if self.apart is None else self.apart

    @property
    def basis(self) -> str:
        """What the numbers rest on, to be said beside them."""
        return basis(len(self.index), self.draws)

    @property
    def per_token(self) -> dd.Measure:
        """The sum of the terms in nats per token; its standard error is over sequences."""
        return self._ratio(self.drawn.sum(-1))

    def term(self, number: int) -> dd.Measure:
        """One of the terms in nats per token."""
        return self._ratio(self.drawn[..., number])

    def _ratio(self, nats: Float[Tensor, "N draws"]) -> dd.Measure:
        return dd.Measure.ratio(nats, self.tokens.double(), "nats/token", self.times)


def basis(texts: int, draws: int) -> str:
    """What a bound rests on: how many texts, and how many draws of time and noise for each."""
    return f"{texts:,} text{'s' * (texts != 1)} x {draws} draw{'s' * (draws != 1)}"


def by_length(batch: Batch, block: int = 1, leads: bool = False) -> Iterator[Batch]:
    """The sequences of a batch without their padding, equally long ones together; the first word is given.

    Args:
        batch: of unpacked sequences.
        block: rows are whole blocks of so many: what fills them up is given too, their last word again and again.
        leads: whether the first word is none of their block's.
    """
    lengths = batch.mask.sum(1)
    for length in lengths.unique().tolist():
        rows = lengths == length
        x, more = batch.x[rows, :length], (leads - length) % block
        x = torch.cat([x, x[:, -1:].expand(-1, more)], 1)
        mask = torch.ones_like(x, dtype=torch.bool)
        mask[:, length:] = False
        mask[:, :1] = False
        yield Batch(x, mask, batch.index[rows])


@torch.no_grad()
def measure(
    process: dd.processes.ForwardProcess,
    denoiser: Denoiser,
    batches: Iterable[Batch],
    seed: int,
    replicate: int,
    parameterization: Parameterization = "cavity",
    density: dd.times.TimeDensity | None = None,
    steps: int | None = None,
    levels: str = "independent",
    pace: dd.paces.Pace | None = None,
    at_once: bool = False,
    alone: bool = False,
    leads: bool = False,
) -> Terms:
    """One draw of time and noise for every sequence, stratified over the corpus, weights unclipped.

    Args:
        process: the noise.
        denoiser: ``(z, t) -> logits``.
        batches: of unpacked sequences; padding is not counted.
        seed: of times and noise.
        replicate: number of the draw; others are independent.
        parameterization: what the logits mean.
        density: of the times; None is uniform.
        steps: of the bound in discrete time; None for continuous time.
        levels: how the tokens of a text share its noise, as ``ddlib.bound``.
        pace: which position when, likewise.
        at_once: whether every block of a text has a draw of its own, likewise.
        alone: whether each sequence is read in a row as long as it is, its first word given: see ``given``.
        leads: whether that word is read apart from the row, by ``denoiser.after``.

    Raises:
        ValueError: no sequence at all; as ``ddlib.bound``.
    """
    parts = []
    block = 1 if pace is None else pace.block or 1
    for batch in chain.from_iterable(by_length(batch, block, leads) for batch in batches) if alone else batches:
        noise, asked = dd.KeyedGenerator(seed, replicate, batch.index, scattered=alone), denoiser
        if leads:
            asked = denoiser.after(batch.x[:, :1])
            batch = Batch(batch.x[:, 1:], batch.mask[:, 1:], batch.index)
        if alone:
            asked = given(asked, batch.x, ~batch.mask)
        bound = dd.bound(
            process, asked, batch.x, noise, density=density, parameterization=parameterization, steps=steps,
            levels=levels, pace=pace, at_once=at_once,
        )  # fmt: skip
        terms = torch.stack([bound.diffusion, bound.prior, bound.reconstruction], -1).double()
        nats = torch.where(batch.mask[..., None], terms, 0.0).sum(1)
        times = None if bound.times is None else bound.times.double().cpu()[:, None]
        parts.append(Terms(batch.index.cpu(), nats.cpu(), batch.mask.sum(1).cpu(), times=times))
    if not parts:
        raise ValueError("batches: there is no sequence to measure")
    return Terms.join(parts)
