"""Blocks: rows of a batch that need the same columns of the output layer, and the divergence of
their logits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ddlib.processes import unsqueeze_times
from ddlib.typing import Logits, PerToken, Times, Tokens

Formula = Callable[[Logits, Tokens, Tokens, Times], PerToken]
Observer = Callable[[Tensor | slice | None, Tensor, Tensor], None]
"""Function of the columns of a block (None for all), the indices (n,) of some of its rows, and
their probabilities over
these columns (n, K)."""

Reader = Callable[[Tensor], None]
"""Function of probabilities (n, K): an ``Observer`` of known columns and rows."""


class Rows(NamedTuple):
    """A flattened batch: clean token, noisy state and time of each row."""

    x: Int64[Tensor, "N"]
    z: Int64[Tensor, "N"]
    t: Float[Tensor, "N"]
    length: int = 1
    """Number of consecutive rows that have one time, a divisor of N."""

    @classmethod
    def of(cls, x: Tokens, z: Tokens, t: Times) -> "Rows":
        """Flatten a batch."""
        times = unsqueeze_times(t.to(torch.float64)).expand_as(x).flatten()
        return cls(x.flatten(), z.flatten(), times, x.shape[1] if t.ndim == 1 else 1)

    def sequences(self) -> tuple[Tokens, Tokens, Times]:
        """Return tokens and states (B, length), and times (B,).

        Functions of time are evaluated B times.
        """
        length = max(self.length, 1)
        return self.x.view(-1, length), self.z.view(-1, length), self.t[::length]

    def take(self, index: Tensor) -> "Rows":
        """Select rows."""
        return Rows(self.x[index], self.z[index], self.t[index])


class Divergence(ABC):
    """Computes divergences, and their derivatives, from logits."""

    in_float32 = True
    """True if half-precision logits must be cast to float32 first."""

    @abstractmethod
    def __call__(
        self, logits: Float[Tensor, "n K"], rows: Rows, derive: bool, read: Reader | None = None
    ) -> Float[Tensor, "n"]:
        """Compute the divergence of each row in nats.

        Args:
            logits: logits of the block's columns, float32 or float64 if ``in_float32``;
                overwritten.
            rows: the rows they belong to.
            derive: whether to write d divergence / d logits into ``logits``.
            read: function to call with the probabilities, which the divergence computes anyway.
        """


class Dense(Divergence):
    """Divergence of any process.

    Its ``formula(logits, x, z, t)``, each row a sequence of length 1, by autograd.
    """

    def __init__(self, formula: Formula) -> None:
        self.formula = formula

    def __call__(
        self, logits: Float[Tensor, "n K"], rows: Rows, derive: bool, read: Reader | None = None
    ) -> Float[Tensor, "n"]:
        if read is not None:
            read(logits.softmax(1))
        with torch.set_grad_enabled(derive):
            variable = logits.detach()[:, None].clone().requires_grad_(derive)
            value = self.formula(variable, rows.x[:, None], rows.z[:, None], rows.t).squeeze(1)
            if derive:
                (slope,) = torch.autograd.grad(value.sum(), variable)
                logits.copy_(slope.squeeze(1))
        return value.detach()


class Part:
    """Base class of parts of a plan, computed by ``fused.add``.

    Rows of no part have divergence 0.
    """


@dataclass(frozen=True)
class Block(Part):
    """Rows that share their columns."""

    rows: Int64[Tensor, "n"]
    """Indices of the rows."""
    columns: Int64[Tensor, "K"] | slice | None
    """Indices of the columns, None for all."""
    divergence: Divergence
    observe: Observer | None = None
    """Function that reads the probabilities of the rows; None for none."""
