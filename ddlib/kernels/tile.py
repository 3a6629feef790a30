"""A block: rows of a batch that need the same columns of the output layer, and what becomes of their logits."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int64
from torch import Tensor


class Rows(NamedTuple):
    """A batch, token by token."""

    x: Int64[Tensor, "N"]
    z: Int64[Tensor, "N"]
    t: Float[Tensor, "N"]

    def take(self, index: Tensor) -> "Rows":
        """Some of the tokens."""
        return Rows(*(column[index] for column in self))


class Divergence(ABC):
    """From logits to divergences, and to their derivatives."""

    wide = True
    """Whether logits in half precision are to be widened first."""

    @abstractmethod
    def __call__(self, logits: Float[Tensor, "n K"], rows: Rows, derive: bool) -> Float[Tensor, "n"]:
        """The divergence of each row in nats.

        Args:
            logits: of the block's columns, float32 or float64 if ``wide``; scratch, its content is lost.
            rows: the tokens that they belong to.
            derive: whether to leave d divergence / d logits in ``logits``.
        """


class Part:
    """Some of a batch's tokens; ``fused.add`` knows what each kind asks for. Tokens of no part have no loss."""


@dataclass(frozen=True)
class Block(Part):
    """Rows that share their columns."""

    rows: Int64[Tensor, "n"]
    """Which tokens."""
    columns: Int64[Tensor, "K"] | slice | None
    """Which tokens, None for all."""
    divergence: Divergence
