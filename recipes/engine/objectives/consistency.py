"""Consistency term of a run: paths at two times, and the teacher's logits at the earlier one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import ddlib as dd
from ddlib.typing import Times
from recipes.config import Recipe, at_least
from recipes.data import Batch
from recipes.engine.network import Network
from recipes.engine.objectives.bound import Bound
from recipes.engine.objectives.noising import NoisyBatch, packed_tokens

_STREAM = 2**62
"""Added to the index of an example, so that its path is independent of the noise and the times of
its loss.
"""

CHUNK = 2**25
"""Most logits of the network that exist at a time, unless one sequence has more."""


@dataclass(frozen=True, kw_only=True)
class Bridged(NoisyBatch):
    """A batch at its times, and on the same path at earlier ones."""

    early: NoisyBatch


@dataclass(frozen=True, kw_only=True)
class Taught(Bridged):
    """The same with the logits of the teacher at the earlier times."""

    target: Float[Tensor, "B L K"]


@dataclass(kw_only=True, repr=False)
class Consistency(Bound):
    """Bound plus ``weight`` times the consistency loss between two times of a path.

    Its teacher is the average of the weights, ``optimizer.ema``. For fewer steps of sampling, with
    ``start`` at a trained run.

    Args:
        weight: weight of the consistency loss.
        divergence: divergence from the teacher, as in ``ddlib.contrib.consistency_loss``.
        anchor: share of sequences whose earlier time is 0, where the token itself is the target.
    """

    weight: float = 0.5
    divergence: Literal["forward_kl", "reverse_kl", "jensen_shannon"] = "forward_kl"
    anchor: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, weight=self.weight)
        if not 0 <= self.anchor <= 1:
            raise ValueError(f"anchor={self.anchor}: must lie in [0, 1]")
        if self.levels != "independent":
            raise ValueError(
                f"levels={self.levels!r}: not with loss.kind=consistency, must be 'independent': "
                "both times of a path are drawn token by token"
            )

    def check(self, recipe: Recipe) -> None:
        super().check(recipe)
        if not recipe.optimizer.ema:
            raise ValueError(
                "loss.kind=consistency: its teacher is the average of the weights, and "
                "optimizer.ema=0 keeps none: set it above 0, such as 0.999"
            )

    def noise(self, batch: Batch, step: int) -> Bridged:
        return self.bridge(super().noise(batch, step), batch, step)

    def bridge(self, noisy: NoisyBatch, batch: Batch, step: int) -> Bridged:
        """Draw the states of a batch at its times and at earlier ones, on one path.

        Earlier times and paths depend on (seed, step, example) alone. Where positions have
        different times, those that move have one factor per sequence, and the others stay.
        """
        process = self.setting.process
        seed = self.setting.recipe.seed
        index = batch.index
        given = ~batch.free.view_as(noisy.x)
        states = process.tokens_as_states(noisy.x)
        times = self.interval[0], self.anchor
        if noisy.cu_seqlens is None or noisy.piece_t is None:
            noise = dd.KeyedGenerator(seed, step, index + _STREAM)
            s = earlier(noisy.t, noisy.measure > 0, noise.rand((len(index), 2)), *times)
            z_t, z_s = dd.contrib.bridge(process, noisy.x, noisy.t, s, noise)
            z_s, s = dd.hold_given(states, z_s, s, given)
            early = replace(noisy, z=z_s, t=s)
        else:
            pieces = dd.KeyedGenerator(seed, step, index + _STREAM, scattered=True)
            chance = pieces.rand((len(index), 2))
            piece_s = earlier(noisy.piece_t, noisy.piece_t > 0, chance, *times)
            owner, noise = packed_tokens(batch, noisy.cu_seqlens, seed, step, _STREAM)
            s = piece_s[owner]
            z_t, z_s = dd.contrib.bridge(process, noisy.x, noisy.t, s, noise)
            z_s, s = dd.hold_given(states, z_s, s, given)
            early = replace(noisy, z=z_s, t=s, piece_t=piece_s)
        z_t, _ = dd.hold_given(states, z_t, noisy.t, given)
        return Bridged(**vars(noisy) | {"z": z_t}, early=early)

    def before(
        self, noisy: NoisyBatch, averaged: Callable[[], AbstractContextManager[None]]
    ) -> NoisyBatch:
        """Add the logits of the averaged weights, without dropout, at the earlier times."""
        assert isinstance(noisy, Bridged)
        with averaged():
            return Taught(**vars(noisy), target=self.setting.network.answer(noisy.early))

    def losses(
        self, raw: Tensor, noisy: NoisyBatch, network: Network, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(noisy, Taught)
        total, losses = super().losses(raw, noisy, network, scale)
        term = self.weight * torch.where(noisy.mask, self.divergences(raw, noisy, network), 0.0)
        return total + scale * term.sum(), losses + term.detach()

    def divergences(self, raw: Tensor, noisy: Taught, network: Network) -> Float[Tensor, "B L"]:
        """Compute the consistency loss of every token, some sequences at a time, whose logits the
        backward pass repeats.
        """
        meaning = network.parameterization
        layer = dd.Hidden.layer(network.model, meaning) if network.split else None
        options: dict[str, Any] = {"parameterization": meaning, "reduction": "none"}

        def of_rows(
            raw: Tensor,
            x: Tensor,
            z_t: Tensor,
            t: Tensor,
            measure: Tensor,
            target: Tensor,
            z_s: Tensor,
            s: Tensor,
        ) -> Tensor:
            logits = raw if layer is None else F.linear(raw, *layer)
            path = z_t, dd.paces.Draw(t, measure), z_s, s
            return dd.contrib.consistency_loss(
                self.setting.process,
                logits,
                target,
                x,
                *path,
                divergence=self.divergence,
                **options,
            )

        early = noisy.early
        rows = (raw, noisy.x, noisy.z, noisy.t, noisy.measure, noisy.target, early.z, early.t)
        size = max(CHUNK // noisy.target[0].numel(), 1)
        if layer is None or size >= len(raw):
            return of_rows(*rows)
        parts = zip(*(each.split(size) for each in rows), strict=True)
        once = dict(use_reentrant=False, preserve_rng_state=False)  # it draws nothing
        return torch.cat([checkpoint(of_rows, *part, **once) for part in parts])

    def terms(self) -> list[str]:
        added = f"{self.weight:g} x the consistency loss ({self.divergence}) added"
        return [*super().terms(), added]


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
