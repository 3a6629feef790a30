"""A batch at its times: input of the network and of the loss."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from ddlib.typing import Times


@dataclass(frozen=True)
class Noisy:
    """A batch at its times: tokens, states and padding (B, L), times (B,), or (B, L) with a pace.

    In packed rows every token is one sequence, (T, 1) and (T,); the network takes them as one row.
    """

    x: Int[Tensor, "B L"]
    z: Int[Tensor, "B L"]
    t: Times
    measure: Float[Tensor, "*n"]
    """Weight of each draw of a time, in the shape of ``t``; 0 where nothing is noised."""
    mask: Bool[Tensor, "B L"]
    """Tokens that count in the loss."""
    cu_seqlens: Int[Tensor, " n"] | None = None
    """Starts of packed documents, and the total."""
    piece_t: Float[Tensor, " N"] | None = None
    """Time of each packed document."""
    at_once: bool = False
    """True if each block has a separate time, and the network takes the clean tokens in front of
    it.
    """
    labels: Int[Tensor, " N"] | None = None
    """Class of each sequence, or of each packed document."""
