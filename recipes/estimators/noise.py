"""Estimators over times and noise: sums of terms, each evaluated at a noised sequence."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

import ddlib as dd
from ddlib.processes import unsqueeze_times
from ddlib.testing import oracle
from recipes.estimators.base import Estimator, Model, SequenceEstimate
from recipes.estimators.times import Moments, Times

POINTS = 60
"""Nodes of the quadrature over time."""


@dataclass(frozen=True)
class Noised:
    """A noised sequence as a term sees it. The network is called when its logits are read."""

    model: Model
    x: Int64[Tensor, "B L"]
    z: Int64[Tensor, "B L"]
    t: Tensor
    """(B,) times, or (B, L) along blocks."""
    s: Tensor
    """Earlier times of a step, likewise."""
    counted: Bool[Tensor, "B L"]
    """True at the positions whose value is used: those that move, without given tokens."""

    @cached_property
    def logits(self) -> Tensor:
        """Cavity logits of the network, (B, L, V)."""
        return self.model.logits(self.z, self.t)

    @property
    def called(self) -> bool:
        """True once the network was called."""
        return "logits" in vars(self)


class Term(NamedTuple):
    """Integral or sum over times of the mean over noise of a value."""

    times: Times
    value: Callable[[Noised], Tensor]
    """(B, L) nats of every position."""


@dataclass(frozen=True, kw_only=True)
class OverNoise(Estimator):
    r"""Sum of terms, each :math:`\sum_l \int w(t)\, E_{z \sim q_t(\cdot | x)}\, f_l(x, z, t)\, dt`.

    Along blocks a term is the sum over blocks, with clean tokens before and noise behind.
    """

    random = True
    terms: tuple[Term, ...]

    @torch.no_grad()
    def draw(
        self,
        model: Model,
        x: Int64[Tensor, "B L"],
        free: Bool[Tensor, "B L"],
        generator: dd.KeyedGenerator,
    ) -> SequenceEstimate:
        rows, length = x.shape
        total = torch.zeros(rows, dtype=torch.float64, device=x.device)
        calls = 0
        for term in self.terms:
            uniforms = [_uniform(rows, generator, x.device) for _ in range(2)]
            parts = model.pace.parts(length)
            part = (uniforms[0] * parts).floor()
            # the best density depends on how many positions share a time: those of a block
            moments = term.times.at(uniforms[1], model.process, length // parts)
            s, t, measure = _along(model, moments, part, length)
            t, s = (_at_given(time, free) for time in (t, s))
            z = torch.where(free, model.process.sample(x, t, generator), x)
            noised = Noised(model, x, z, t, s, counted=free & (measure > 0))
            value = term.value(noised).to(torch.float64)
            nats = torch.where(noised.counted, measure * value, 0.0).sum(-1)
            total += moments.weight * nats
            calls += noised.called
        return SequenceEstimate(total, calls)

    @torch.no_grad()
    def expectation(self, model: Model, x: Int64[Tensor, "B L"]) -> Float64[Tensor, "B"]:
        length = x.shape[1]
        states = oracle.sequences(model.process.num_states, length)
        parts = model.pace.parts(length)
        total = torch.zeros(len(x), dtype=torch.float64)
        for term in self.terms:
            moments = term.times.nodes(model.process, POINTS)
            grid = [
                axis.flatten()
                for axis in torch.meshgrid(
                    torch.arange(len(x)),
                    torch.arange(len(states)),
                    torch.arange(len(moments.t)),
                    torch.arange(parts),
                    indexing="ij",
                )
            ]
            row, state, node, part = grid
            s, t, measure = _along(
                model, Moments(*(value[node] for value in moments)), part.double(), length
            )
            chance = model.process.likelihood(states[state], x[row], t).prod(-1)
            reached = chance > 0
            rows = row[reached]
            measure = measure[reached]
            noised = Noised(
                model, x[rows], states[state[reached]], t[reached], s[reached], counted=measure > 0
            )
            nats = torch.where(noised.counted, measure * term.value(noised).double(), 0.0).sum(-1)
            weight = (chance * moments.weight[node])[reached] / parts
            total.index_add_(0, rows, weight * nats)
        return total


def _along(
    model: Model, moments: Moments, part: Tensor, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return times s and t in a part of the pace, and the measure (B, L) of each position.

    The mean of the measure over parts is 1. Each part of the path takes its positions from 0 to 1.
    """
    parts = model.pace.parts(length)
    still = torch.zeros(len(part), length, dtype=torch.float64, device=part.device)
    s, t = (model.pace.times((part + time) / parts, still) for time in (moments.s, moments.t))
    middle = (part + 0.5) / parts  # at both ends of a part several positions may move
    measure = unsqueeze_times(model.pace.speeds(middle, still)).expand(len(part), length)
    return s, t, measure


def _at_given(time: Tensor, free: Bool[Tensor, "B L"]) -> Tensor:
    """Return the times with 0 at given tokens, where each position has its own."""
    return time if time.ndim == 1 else torch.where(free, time, 0.0)


def _uniform(rows: int, generator: dd.KeyedGenerator, device: torch.device) -> Float64[Tensor, "B"]:
    return dd.sample_times(rows, "iid", generator, dtype=torch.float64, device=device)
