"""The bound of a corpus or its likelihood, sequence by sequence: whatever the batch size and number of processes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

import ddlib as dd
from ddlib.denoiser import Parameterization
from ddlib.typing import Denoiser
from recipes.data import Batch


@dataclass(frozen=True)
class Terms:
    """What was measured of every sequence, on the CPU, in the order of the corpus."""

    index: Int[Tensor, " N"]
    nats: Float[Tensor, "N terms"]
    """Sums over the sequence's real tokens: of a bound diffusion, prior, reconstruction; -log p(x) alone."""
    tokens: Int[Tensor, " N"]
    draws: int = 1
    """Of time and noise, over which the nats are the mean."""

    @classmethod
    def join(cls, parts: Iterable["Terms"]) -> "Terms":
        """All parts as one, in the order of the corpus."""
        parts = list(parts)
        index, nats, tokens = (torch.cat([getattr(p, n) for p in parts]) for n in ("index", "nats", "tokens"))
        order = index.argsort()
        return cls(index[order], nats[order], tokens[order], parts[0].draws)

    @classmethod
    def average(cls, replicates: Sequence["Terms"]) -> "Terms":
        """The mean of several draws for the same sequences."""
        nats = torch.stack([r.nats for r in replicates]).mean(0)
        return replace(replicates[0], nats=nats, draws=sum(r.draws for r in replicates))

    def first(self, n: int) -> "Terms":
        """The sequences with an index below ``n``, each once."""
        keep = self.index < n
        keep[1:] &= self.index[1:] != self.index[:-1]
        return Terms(self.index[keep], self.nats[keep], self.tokens[keep], self.draws)

    @property
    def basis(self) -> str:
        """What the numbers rest on, to be said beside them."""
        return basis(len(self.index), self.draws)

    @property
    def per_token(self) -> dd.Measure:
        """The sum of the terms in nats per token; its standard error is over sequences."""
        return dd.Measure.ratio(self.nats.sum(1), self.tokens.double(), "nats/token")

    def term(self, number: int) -> dd.Measure:
        """One of the terms in nats per token."""
        return dd.Measure.ratio(self.nats[:, number], self.tokens.double(), "nats/token")


def basis(texts: int, draws: int) -> str:
    """What a bound rests on: how many texts, and how many draws of time and noise for each."""
    return f"{texts:,} text{'s' * (texts != 1)} x {draws} draw{'s' * (draws != 1)}"


@torch.no_grad()
def measure(
    process: dd.processes.ForwardProcess,
    denoiser: Denoiser,
    batches: Iterable[Batch],
    seed: int,
    replicate: int,
    parameterization: Parameterization = "cavity",
    steps: int | None = None,
    levels: str = "independent",
) -> Terms:
    """One draw of time and noise for every sequence, stratified over the corpus, weights unclipped.

    Args:
        process: the noise.
        denoiser: ``(z, t) -> logits``.
        batches: of unpacked sequences; padding is not counted.
        seed: of times and noise.
        replicate: number of the draw; others are independent.
        parameterization: what the logits mean.
        steps: of the bound in discrete time; None for continuous time.
        levels: how the tokens of a text share its noise, as ``ddlib.bound``.

    Raises:
        ValueError: no sequence at all; as ``ddlib.bound``.
    """
    parts = []
    for batch in batches:
        noise = dd.KeyedGenerator(seed, replicate, batch.index)
        bound = dd.bound(
            process, denoiser, batch.x, noise, parameterization=parameterization, steps=steps, levels=levels
        )
        terms = torch.stack([bound.diffusion, bound.prior, bound.reconstruction], -1).double()
        nats = torch.where(batch.mask[..., None], terms, 0.0).sum(1)
        parts.append(Terms(batch.index.cpu(), nats.cpu(), batch.mask.sum(1).cpu()))
    if not parts:
        raise ValueError("batches: there is no sequence to measure")
    return Terms.join(parts)
