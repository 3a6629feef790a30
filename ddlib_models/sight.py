"""What the positions of a causal language model see once they may look ahead, and whose logits stand where."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ddlib_models.rules import ByBlocks


def seen_by(row: int, length: int, block_size: int, sight: float, device: torch.device) -> Bool[Tensor, "n n"]:
    """Which positions of a row see which: (queries, keys).

    Args:
        row: positions of the row, ``length``, or twice that where the clean text stands behind the noisy one.
        length: of the text.
        block_size: each sees its own block and the clean ones before it; 0: all see all.
        sight: probability of seeing a position that is further on in the text; the draw is that of torch's generator.
        device: where to.
    """
    index = torch.arange(row, device=device)
    seen = torch.ones(row, row, dtype=torch.bool, device=device)
    if block_size:
        seen = ByBlocks(block_size, row - length)(index[:, None], index)
    if sight < 1:
        position = index % length
        seen = seen & ((torch.rand(seen.shape, device=device) < sight) | (position[:, None] >= position))
    return seen


def added(seen: Bool[Tensor, "*n"], dtype: torch.dtype) -> Float[Tensor, "*n"]:
    """The mask as every kind of attention in transformers takes it: a number to add, finite in half precision too."""
    least = torch.finfo(torch.float16 if dtype == torch.float16 else torch.bfloat16).min
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, least)


def shifted(
    features: Float[Tensor, "B n D"], length: int, block_size: int, present: Bool[Tensor, "B L"] | None
) -> Float[Tensor, "B L D"]:
    """For each position the features of the one in front; the first that is present keeps its own.

    Args:
        features: of a row as ``seen_by`` knows it.
        length: of the text.
        block_size: in front of a block stands the last position of the clean one before it, where there are clean ones.
        present: False at padding.
    """
    noisy, clean = features[:, :length], features[:, length:]
    before = torch.cat([noisy[:, :1], noisy[:, :-1]], 1)
    if present is not None:
        return torch.where((present & (present.cumsum(1) == 1))[..., None], noisy, before)
    if clean.shape[1]:
        index = torch.arange(length, device=features.device)
        begins = (index % block_size == 0) & (index > 0)
        return torch.where(begins[:, None], torch.cat([clean[:, :1], clean[:, :-1]], 1), before)
    return before


@dataclass(frozen=True)
class Words:
    """The words of a text that goes on: they are read again at every call."""

    words: Int[Tensor, "B n"]

    def rows(self, index: Int[Tensor, " m"]) -> "Words":
        """Of some of the sequences."""
        return Words(self.words[index])

    def of(self, count: int) -> Int[Tensor, "B n"]:
        """The words, if there are as many sequences.

        Raises:
            ValueError: there are not.
        """
        if len(self.words) != count:
            raise ValueError(f"cache: of {len(self.words)} sequences, must be of {count}")
        return self.words
