"""Attention masks and logit shifts that turn a causal language model into a bidirectional
denoiser.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ddlib_models.attention.masks import ByBlocks


def sight_mask(
    row: int,
    length: int,
    block_size: int,
    sight: float,
    device: torch.device,
    first: int = 0,
    behind: int = 0,
) -> Bool[Tensor, "n m"]:
    """Return the attention mask of a row, (queries, keys), True where the query attends to the key.

    Args:
        row: positions of the row, ``length``, or twice that where the clean sequence follows the
            noisy one.
        length: length of the sequence.
        block_size: a position attends to its own block and to the clean ones before it; 0: all to
            all.
        sight: probability of attending to a later position; drawn from torch's default generator.
        device: device of the mask.
        first: number of positions in front of the row that have keys only.
        behind: number of positions behind the row that have keys only; their keys stand before
            those of the row.
    """
    index = torch.arange(first + row + behind, device=device)
    mask = torch.ones(row, len(index), dtype=torch.bool, device=device)
    keys = torch.cat([index[:first], index[first + row :], index[first : first + row]])
    if block_size:
        mask = ByBlocks(block_size, row - length, first)(index[:row, None], keys)
    if sight < 1:
        position = keys % (first + length + behind)
        mask = mask & (
            (torch.rand(mask.shape, device=device) < sight) | (position[-row:, None] >= position)
        )
    return mask


def additive_mask(mask: Bool[Tensor, "*n"], dtype: torch.dtype) -> Float[Tensor, "*n"]:
    """Return the additive mask that transformers' attention functions take.

    Finite in half precision too.
    """
    # bfloat16 has nearly the range of float32: its lowest number is finite in both
    least = torch.finfo(torch.float16 if dtype == torch.float16 else torch.bfloat16).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, least)


def shift_features(
    features: Float[Tensor, "B n D"],
    length: int,
    block_size: int,
    present: Bool[Tensor, "B L"] | None,
    last: Float[Tensor, "B ... D"] | None = None,
) -> Float[Tensor, "B L D"]:
    """Return for each position the features of the one before.

    The first position present keeps its features.

    With padding the one before is the last that is present, wherever the padding stands.

    Args:
        features: features of a row laid out as in ``sight_mask``.
        length: length of the sequence.
        block_size: with clean tokens, the position before a block is the last one of the clean
            block before it.
        present: False at padding.
        last: features of the position in front of the row, if there is one.
    """
    noisy = features[:, :length]
    clean = features[:, length:]
    ahead = noisy[:, :1] if last is None or not last.shape[1] else last
    before = torch.cat([ahead, noisy[:, :-1]], 1)
    if present is not None:
        index = torch.arange(length, device=features.device)
        # the last position present so far
        latest = torch.where(present, index, -1).cummax(1).values
        source = F.pad(latest[:, :-1], (1, 0), value=-1)
        source = torch.where(source < 0, index, source)
        return noisy.gather(1, source[..., None].expand(noisy.shape))
    if clean.shape[1]:
        index = torch.arange(length, device=features.device)
        begins = (index % block_size == 0) & (index > 0)
        return torch.where(begins[:, None], torch.cat([clean[:, :1], clean[:, :-1]], 1), before)
    return before
