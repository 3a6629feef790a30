"""Times of the terms of an estimator: draws of them, and quadratures."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.testing import oracle


class Moments(NamedTuple):
    """Times of a term with their weights, (N,) float64 each."""

    s: Float64[Tensor, "N"]
    """Earlier time of a step; equal to t where there are no steps."""
    t: Float64[Tensor, "N"]
    weight: Float64[Tensor, "N"]


class Times(ABC):
    """Times at which a term is evaluated; the term is the sum or integral of weight times value."""

    @abstractmethod
    def at(self, u: Float64[Tensor, "N"], process: ForwardProcess, length: int) -> Moments:
        """Return times for uniforms ``u``, weighted so that the mean over draws is the term.

        Args:
            u: numbers in [0, 1).
            process: the noise.
            length: number of positions that share a time.
        """

    @abstractmethod
    def nodes(self, process: ForwardProcess, points: int) -> Moments:
        """Return the times of a sum, or ``points`` nodes in each interval without kinks."""


@dataclass(frozen=True)
class Interval(Times):
    """Uniform times between ``low`` and ``high``."""

    low: float = 0.0
    high: float = 1.0

    def at(self, u: Float64[Tensor, "N"], process: ForwardProcess, length: int) -> Moments:
        t = self.low + (self.high - self.low) * u
        return Moments(t, t, torch.full_like(u, self.high - self.low))

    def nodes(self, process: ForwardProcess, points: int) -> Moments:
        ends = [self.low, *(end for end in process.breaks if self.low < end < self.high), self.high]
        unit, weight = oracle.tanh_sinh(points)
        t = torch.cat([low + (high - low) * unit for low, high in pairwise(ends)])
        weights = torch.cat([(high - low) * weight for low, high in pairwise(ends)])
        return Moments(t, t, weights)


@dataclass(frozen=True)
class LeastVariance(Interval):
    """Times from ``process.time_density``, divided out: the integral with less variance."""

    def at(self, u: Float64[Tensor, "N"], process: ForwardProcess, length: int) -> Moments:
        density = process.time_density(length)
        t = density.inverse(u)
        return Moments(t, t, density.weight(t))


@dataclass(frozen=True)
class Steps(Times):
    """Steps ``first`` to ``steps`` of an even grid of so many steps, counted from 1 at the data."""

    steps: int
    first: int = 1

    def at(self, u: Float64[Tensor, "N"], process: ForwardProcess, length: int) -> Moments:
        count = self.steps - self.first + 1
        number = self.first + (u * count).floor().clamp_max(count - 1)
        return Moments((number - 1) / self.steps, number / self.steps, torch.full_like(u, count))

    def nodes(self, process: ForwardProcess, points: int) -> Moments:
        number = torch.arange(self.first, self.steps + 1, dtype=torch.float64)
        return Moments((number - 1) / self.steps, number / self.steps, torch.ones_like(number))


class Single(Times):
    """Times that are one and the same, whatever the uniforms."""

    def nodes(self, process: ForwardProcess, points: int) -> Moments:
        return self.at(torch.zeros(1, dtype=torch.float64), process, 1)


@dataclass(frozen=True)
class Once(Single):
    """A single time."""

    time: float

    def at(self, u: Float64[Tensor, "N"], process: ForwardProcess, length: int) -> Moments:
        t = torch.full_like(u, self.time)
        return Moments(t, t, torch.ones_like(u))


@dataclass(frozen=True)
class HalfMasked(Single):
    """The time of a process of masks at which alpha is 1/2: half of the tokens are masks."""

    def at(self, u: Float64[Tensor, "N"], process: ForwardProcess, length: int) -> Moments:
        (schedule,) = process.schedules
        t = schedule.inverse(torch.full_like(u, 0.5))
        return Moments(t, t, torch.ones_like(u))
