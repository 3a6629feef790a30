"""What the positions of a causal language model see once they may look ahead, and whose logits stand where."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ddlib_models.attention.masks import ByBlocks


def seen_by(
    row: int, length: int, block_size: int, sight: float, device: torch.device, first: int = 0
) -> Bool[Tensor, "n m"]:
    """Which positions of a row see which: (queries, keys).

    Args:
        row: positions of the row, ``length``, or twice that where the clean text stands behind the noisy one.
        length: of the text.
        block_size: each sees its own block and the clean ones before it; 0: all see all.
        sight: probability of seeing a position that is further on in the text; the draw is that of torch's generator.
        device: where to.
        first: positions in front of the row, of which there are keys alone.
    """
    index = torch.arange(first + row, device=device)
    seen = torch.ones(row, first + row, dtype=torch.bool, device=device)
    if block_size:
        seen = ByBlocks(block_size, row - length, first)(index[:row, None], index)
    if sight < 1:
        position = index % (first + length)
        seen = seen & ((torch.rand(seen.shape, device=device) < sight) | (position[first:, None] >= position))
    return seen


def added(seen: Bool[Tensor, "*n"], dtype: torch.dtype) -> Float[Tensor, "*n"]:
    """The mask as every kind of attention in transformers takes it: a number to add, finite in half precision too."""
    least = torch.finfo(torch.float16 if dtype == torch.float16 else torch.bfloat16).min
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, least)


def shifted(
    features: Float[Tensor, "B n D"],
    length: int,
    block_size: int,
    present: Bool[Tensor, "B L"] | None,
    last: Float[Tensor, "B ... D"] | None = None,
) -> Float[Tensor, "B L D"]:
    """For each position the features of the one in front; the first that is present keeps its own.

    Args:
        features: of a row as ``seen_by`` knows it.
        length: of the text.
        block_size: in front of a block stands the last position of the clean one before it, where there are clean ones.
        present: False at padding.
        last: what stands in front of the row, if anything does.
    """
    noisy, clean = features[:, :length], features[:, length:]
    ahead = noisy[:, :1] if last is None or not last.shape[1] else last
    before = torch.cat([ahead, noisy[:, :-1]], 1)
    if present is not None:
        return torch.where((present & (present.cumsum(1) == 1))[..., None], noisy, before)
    if clean.shape[1]:
        index = torch.arange(length, device=features.device)
        begins = (index % block_size == 0) & (index > 0)
        return torch.where(begins[:, None], torch.cat([clean[:, :1], clean[:, :-1]], 1), before)
    return before
