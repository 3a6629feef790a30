"""The exact likelihood of a corpus, sequence by sequence."""

from collections.abc import Iterable

import torch

import ddlib as dd
from ddlib.parameterization.logits import Parameterization
from ddlib.typing import Denoiser
from recipes.data import Batch
from recipes.metrics.bound import Terms


def read(
    process: dd.processes.ForwardProcess,
    denoiser: Denoiser,
    batches: Iterable[Batch],
    order: dd.samplers.Sampler,
    steps: int | None,
    wanted: int,
    packed: bool = False,
    parameterization: Parameterization = "cavity",
    alone: bool = False,
) -> tuple[Terms, int]:
    """-log p(x) of every sequence by an order, and the most network calls that a batch took.

    Args:
        process: the noise.
        denoiser: ``(z, t) -> logits``.
        batches: of unpacked sequences; their padding is given.
        order: which position goes next.
        steps: at most so many calls; None for one per edge.
        wanted: sequences from this number on are left out, since each call is dear.
        packed: whether the network knows no padding: each sequence is read at its own length.
        parameterization: what the logits mean.
        alone: whether that holds and its first word is given, as ``measure``.

    Raises:
        TypeError, ValueError: as ``ddlib.likelihood``, before the network runs.
    """
    parts, most = [], 0
    for batch in batches:
        own = batch.index < wanted
        x, mask, index = batch.x[own], batch.mask[own], batch.index[own]
        tokens, nats = mask.sum(1), torch.zeros(len(x), dtype=torch.float64)
        lengths = tokens if packed or alone else torch.full_like(tokens, x.shape[1])
        if alone:
            mask, tokens = mask.clone(), tokens - 1
            mask[:, 0] = False
        for length in lengths.unique().tolist():
            rows = lengths == length
            found = dd.likelihood(
                process, denoiser, x[rows, :length], order, steps=steps, given=~mask[rows, :length],
                parameterization=parameterization,
            )  # fmt: skip
            nats[rows.cpu()] = -found.log_likelihood.cpu()
            most = max(most, found.calls)
        parts.append(Terms(index.cpu(), nats[:, None], tokens.cpu()))
    return Terms.join(parts), most
