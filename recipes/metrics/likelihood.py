"""Exact likelihood of a corpus, sequence by sequence."""

from collections.abc import Iterable
from typing import Any

import torch

import ddlib as dd
from ddlib.typing import Denoiser
from recipes.data import Batch
from recipes.metrics.bound import Terms
from recipes.metrics.conditioned import takes_labels, with_label


def read(
    process: dd.processes.ForwardProcess,
    denoiser: Denoiser,
    batches: Iterable[Batch],
    order: dd.samplers.Sampler,
    steps: int | None,
    wanted: int,
    packed: bool = False,
    parameterization: str | dd.Children = "cavity",
    alone: bool = False,
    group: int | None = None,
    pace: dd.paces.Pace | None = None,
) -> tuple[Terms, int]:
    """Return -log p(x) of every sequence by an order, and the largest number of network calls of a
    batch.

    With a group the terms of a sequence are three: -log p(x), and the costs of drawing in parallel
    and of the order.

    Args:
        process: the noise.
        denoiser: ``(z, t) -> logits``.
        batches: batches of unpacked sequences; their padding is given. Their labels are given to a
            network that takes labels, as in ``measure``.
        order: the order of positions.
        steps: maximum number of calls; None for one per edge.
        wanted: sequences from this index on are left out, as each call is expensive.
        packed: whether the network was trained without padding: each sequence is evaluated at its
            length.
        parameterization: meaning of the logits.
        alone: whether that holds and the first token is given, as in ``measure``.
        group: edges per call in place of ``steps``; None: as many as steps and order give, without
            costs.
        pace: blocks by which the sequences are drawn; None: the whole sequence.

    Raises:
        TypeError, ValueError: as in ``ddlib.likelihood``, before the network runs.
    """
    parts = []
    most = 0
    for batch in batches:
        wanted_rows = batch.index < wanted
        x = batch.x[wanted_rows]
        mask = batch.mask[wanted_rows]
        index = batch.index[wanted_rows]
        tokens = mask.sum(1)
        nats = torch.zeros(len(x), 1 if group is None else 3, dtype=torch.float64)
        lengths = tokens if packed or alone else torch.full_like(tokens, x.shape[1])
        if alone:
            mask = mask.clone()
            mask[:, 0] = False
        mask = mask & batch.free[wanted_rows]
        tokens = mask.sum(1)
        conditional = batch.labels is not None and takes_labels(denoiser)
        # a call takes some of the rows, so all rows of a call have one label
        labels = batch.labels[wanted_rows] if conditional else torch.zeros_like(lengths)
        for length, label in torch.stack([lengths, labels], 1).unique(dim=0).tolist():
            rows = (lengths == length) & (labels == label)
            text = x[rows, :length]
            known = ~mask[rows, :length]
            network = with_label(denoiser, label) if conditional else denoiser
            options: dict[str, Any] = {
                "given": known,
                "parameterization": parameterization,
                "pace": pace,
            }
            if group is None:
                likely = dd.likelihood(process, network, text, order, steps=steps, **options)
                terms = [-likely.log_likelihood]
                calls = likely.calls
            else:
                costs = dd.contrib.order_costs(process, network, text, order, group, **options)
                terms = [costs.sets, costs.drawing_in_parallel, costs.order]
                calls = costs.calls
            nats[rows.cpu()] = torch.stack(terms, -1).cpu()
            most = max(most, calls)
        parts.append(Terms(index.cpu(), nats, tokens.cpu()))
    return Terms.join(parts), most
