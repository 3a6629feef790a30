"""Contract of an estimator of -log p(x): a draw with its network calls, and the expectation."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

import ddlib as dd
from ddlib.typing import Denoiser

Claim = Literal["exact", "bound", "neither"]
"""Kraft's sum over all sequences: 1 for every network; never above 1; above 1 for some network."""


@dataclass(frozen=True)
class Model:
    """A process and a network, whose sequences an estimator assigns probabilities to."""

    process: dd.processes.ForwardProcess
    network: Denoiser
    """``(z, t) -> logits``."""
    parameterization: str | dd.Children = "cavity"
    pace: dd.paces.Pace = field(default_factory=dd.paces.Together)
    """``Together()``, or ``Blocks(n)`` for sequences that are generated block by block."""

    def logits(self, z: Int64[Tensor, "B L"], t: Tensor) -> Tensor:
        """Return the cavity logits at states ``z`` and times ``t``, (B, L, V)."""
        # a copy, since a network may write into its input
        output = self.network(z.clone(), t.to(torch.get_default_dtype()))
        return dd.cavity_logits(self.process, output, z, t, self.parameterization)


class SequenceEstimate(NamedTuple):
    """An estimate for every sequence of a batch."""

    nats: Float64[Tensor, "B"]
    """Estimate of -log p(x | given tokens), nats per sequence."""
    calls: int
    """Number of network calls per sequence."""


@dataclass(frozen=True, kw_only=True)
class Estimator(ABC):
    """Estimator of -log p(x), with its expectation on a space that can be enumerated."""

    random: ClassVar[bool]
    """Whether draws differ."""
    name: str
    claim: Claim
    """Kraft's sum for every supported process; for some processes it may be better."""
    source: str
    """Where the formula, or its use, is published."""
    needs: tuple[str, ...] = ()
    """Rows of the table ``recipes.estimators.needs.NEEDS``."""

    @abstractmethod
    def draw(
        self,
        model: Model,
        x: Int64[Tensor, "B L"],
        free: Bool[Tensor, "B L"],
        generator: dd.KeyedGenerator,
    ) -> SequenceEstimate:
        """Estimate -log p(x | given tokens) of every sequence by one draw of times and noise.

        Args:
            model: process and network.
            x: (B, L) clean tokens.
            free: (B, L), False at given tokens, as padding: never noised, without a term.
            generator: source of times and noise.
        """

    @abstractmethod
    def expectation(self, model: Model, x: Int64[Tensor, "B L"]) -> Float64[Tensor, "B"]:
        """Compute the expectation of ``draw`` by enumeration of states and quadrature in time."""
