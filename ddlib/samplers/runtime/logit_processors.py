"""Functions of the logits before tokens are drawn."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ddlib.utils.validation import due, require


class LogitProcessors:
    """Functions of the cavity distribution of tokens, one after the other.

    This distribution determines those of clusters, so they apply to every sampler.

    Args:
        functions: each maps the logits (N, V) of N positions, the sequences (N, L) that contain
            them, and their positions (N,) in these, to new logits.
    """

    def __init__(self, functions: Sequence[Callable[[Tensor, Tensor, Tensor], Tensor]]) -> None:
        self.functions = functions

    def __call__(
        self, logits: Float[Tensor, "N V"], states: Int64[Tensor, "N L"], i: Int64[Tensor, "N"]
    ) -> Float[Tensor, "N V"]:
        """Apply the functions to the logits of N positions.

        Args:
            logits: (N, V) logits.
            states: (N, L) states of the sequences that contain them.
            i: (N,) their positions in the sequences.

        Returns:
            (N, V) logits, -inf at tokens that are not drawn.

        Raises:
            ValueError: all tokens that the logits allow are excluded.
        """
        for function in self.functions:
            logits = function(logits, states, i)
        if due(logits):
            empty = ~logits.amax(-1).isfinite()
            require(
                not bool(empty.any()),
                "forbidden contains all tokens to which the network gives a positive probability "
                f"at position {i[empty][:1].tolist()}, must leave one",
            )
        return logits

    def everywhere(
        self, logits: Float[Tensor, "B L V"], states: Int64[Tensor, "B n"], first: int = 0
    ) -> Float[Tensor, "B L V"]:
        """Apply it to L positions of each sequence, starting at position ``first``."""
        i = first + torch.arange(logits.shape[1], device=states.device)
        return torch.stack(
            [
                self(row, sequence.expand(len(i), -1), i)
                for row, sequence in zip(logits, states, strict=True)
            ]
        )
