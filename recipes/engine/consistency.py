"""Consistency term of a run.

Paths at two times, and the teacher's logits at the earlier one (``loss.consistency``).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import ddlib as dd
from ddlib.parameterization.logits import Parameterization
from ddlib.typing import Times
from recipes.config import Loss
from recipes.data import Batch
from recipes.engine.noisy import Noisy

_STREAM = 2**62
"""Added to the index of an example, so that its path is independent of the noise and the times of
its loss.
"""

CHUNK = 2**25
"""Most logits of the network that exist at a time, unless one sequence has more."""


@dataclass(frozen=True)
class Target:
    """Target of the consistency term.

    The teacher's logits (B, L, K) at earlier states (B, L) and times.
    """

    logits: Float[Tensor, "B L K"]
    z: Int[Tensor, "B L"]
    s: Times


def bridged(
    process: dd.processes.ForwardProcess,
    noisy: Noisy,
    batch: Batch,
    seed: int,
    step: int,
    loss: Loss,
) -> tuple[Noisy, Noisy | None]:
    """Draw the states of a batch at its times and at earlier ones, on one path.

    Without the term return it as it is.

    Earlier times and paths depend on (seed, step, example) alone. Where positions have different
    times, those that move have one factor per sequence, and the others stay.
    """
    if not loss.consistency:
        return noisy, None
    index = batch.index
    low = loss.interval[0]
    if noisy.cu_seqlens is None or noisy.piece_t is None:
        noise = dd.KeyedGenerator(seed, step, index + _STREAM)
        chance = noise.rand((len(index), 2))
        s = earlier(noisy.t, noisy.measure > 0, chance, low, loss.consistency_anchor)
        z_t, z_s = dd.bridge(process, noisy.x, noisy.t, s, noise)
        return replace(noisy, z=z_t), replace(noisy, z=z_s, t=s)
    pieces = dd.KeyedGenerator(seed, step, index + _STREAM, scattered=True)
    piece_s = earlier(
        noisy.piece_t, noisy.piece_t > 0, pieces.rand((len(index), 2)), low, loss.consistency_anchor
    )
    lengths = noisy.cu_seqlens.diff()
    owner = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    offset = torch.arange(len(owner), device=owner.device) - noisy.cu_seqlens[owner]
    token = dd.KeyedGenerator(seed, step, index[owner] + offset + 2**61 + _STREAM)
    s = piece_s[owner]
    z_t, z_s = dd.bridge(process, noisy.x, noisy.t, s, token)
    return replace(noisy, z=z_t), replace(noisy, z=z_s, t=s, piece_t=piece_s)


def earlier(
    t: Times, moves: Bool[Tensor, "*n"], chance: Float64[Tensor, "B 2"], low: float, anchor: float
) -> Times:
    """Return times below ``t``: uniform from ``low`` to t, or 0 with probability ``anchor``.

    Args:
        t: (B,) times, or (B, L).
        moves: positions that are at neither end of their path; the others keep their time, unless
            none moves.
        chance: (B, 2) uniforms.
        low: earliest time of training; rounding that leads to no earlier time leads to 0.
        anchor: share of sequences at 0.
    """
    share, turn = (values[:, None] if t.ndim == 2 else values for values in chance.unbind(1))
    s = (low + (t.double() - low) * share).to(t.dtype)
    s = torch.where((turn < anchor) | (s >= t), 0.0, s).to(t.dtype)
    return s if t.ndim == 1 else torch.where(moves | ~moves.any(1, keepdim=True), s, t)


def target(
    answer: Callable[[Noisy], Tensor],
    averaged: Callable[[], AbstractContextManager[None]],
    early: Noisy | None,
) -> Target | None:
    """Return the logits of the averaged weights, without dropout, at the earlier times.

    None without the term.

    Args:
        answer: function that returns the logits of the network for a noisy batch, without gradient.
        averaged: context manager within which it has the averaged weights.
        early: states at the earlier times.
    """
    if early is None:
        return None
    with averaged():
        return Target(answer(early), early.z, early.t)


def consistency(
    process: dd.processes.ForwardProcess,
    output: Float[Tensor, "B L D"],
    layer: tuple[Tensor, Tensor | None] | None,
    noisy: Noisy,
    target: Target,
    loss: Loss,
    parameterization: Parameterization,
) -> Float[Tensor, "B L"]:
    """Compute the consistency loss of every token, some sequences at a time, whose logits the
    backward pass repeats.

    Args:
        process: the noise.
        output: features of the network; logits where ``layer`` is None.
        layer: matrix and bias of the output layer.
        noisy: states of the features.
        target: the teacher.
        loss: the divergence.
        parameterization: meaning of all logits.
    """

    def of_rows(
        output: Tensor,
        x: Tensor,
        z_t: Tensor,
        t: Tensor,
        measure: Tensor,
        logits: Tensor,
        z_s: Tensor,
        s: Tensor,
    ) -> Tensor:
        own = output if layer is None else F.linear(output, *layer)
        return dd.consistency_loss(
            process,
            own,
            logits,
            x,
            z_t,
            dd.paces.Draw(t, measure),
            z_s,
            s,
            divergence=loss.consistency_divergence,
            parameterization=parameterization,
            reduction="none",
        )

    given = (output, noisy.x, noisy.z, noisy.t, noisy.measure, target.logits, target.z, target.s)
    rows = max(CHUNK // target.logits[0].numel(), 1)
    if layer is None or rows >= len(output):
        return of_rows(*given)
    parts = zip(*(each.split(rows) for each in given), strict=True)
    options = dict(use_reentrant=False, preserve_rng_state=False)  # it draws nothing
    return torch.cat([checkpoint(of_rows, *part, **options) for part in parts])
