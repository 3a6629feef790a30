"""A batch of rows of tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, padded at their ends.

    Unpacked, a row is one example. Packed, the concatenated rows are cut into pieces by
    ``cu_seqlens``: documents, and the remainder of each row, which is only padding.
    """

    x: Int[Tensor, "B L"]
    mask: Bool[Tensor, "B L"]
    """True at real tokens, False at padding."""
    free: Bool[Tensor, "B L"]
    """True at tokens that are noised and learned, False at given tokens.

    Padding is free too: where it counts depends on the mask."""
    index: Int[Tensor, " N"]
    """Position of each example in the global order.

    Packed, of each piece: the position of its first token in the
    global order of tokens, so that ``index + offset`` is unique for every token."""
    cu_seqlens: Int[Tensor, " n"] | None = None
    """Packed: where pieces begin in ``x.flatten()``, and its length."""
    labels: Int[Tensor, " N"] | None = None
    """Index of the class of each example; packed, of each piece, -1 for padding.

    None without labels.
    """

    def to(self, device: torch.device) -> "Batch":
        """Move the batch to another device, without waiting for it."""
        return Batch(
            *(None if part is None else _copy(part, device) for part in vars(self).values())
        )


def _copy(part: Tensor, device: torch.device) -> Tensor:
    # only copies from pinned memory are made while the host goes on
    pinned = part.pin_memory() if device.type == "cuda" else part
    return pinned.to(device, non_blocking=True)
