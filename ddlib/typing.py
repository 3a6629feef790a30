"""Names for the shapes that every room of the library speaks in.

``B`` sequences, ``L`` positions, ``V`` words, ``S`` states. States are integers: words ``0..V-1``, then each level's
clusters in order, the mask last.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float, Int64
from torch import Tensor

Tokens = Int64[Tensor, "B L"]
"""Words or states, int64."""

Times = Float[Tensor, "B"]
"""One time per sequence in [0, 1]: 0 is data, 1 is noise."""

Logits = Float[Tensor, "B L V"]
"""Unnormalised log-probabilities over words only."""

WordLaw = Float[Tensor, "B L V"]
"""A distribution over words at every position; rows sum to 1."""

StateLaw = Float[Tensor, "B L S"]
"""A distribution (or rates) over states at every position."""

StateMatrix = Float[Tensor, "S S"]
"""Rates or probabilities between states, row = from, column = to."""

PerToken = Float[Tensor, "B L"]
"""One number per position, in nats per token unless said otherwise."""

PaddingMask = Bool[Tensor, "B L"]
"""True where a position is real text, False where it is padding."""

Sharpen = Callable[[Tensor], Tensor]
"""What temperature and top-p do: rows of unnormalised log-probabilities to such rows."""

Denoiser = Callable[[Tensor, Tensor], Tensor]
"""The backbone: ``(z, t) -> logits`` with z (B, L) int64, t (B,) and logits (B, L, V)."""
