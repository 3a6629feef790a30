"""Draws from categorical distributions over large vocabularies, exact far into the tail.

Float32 Gumbel noise cannot exceed 16.6, so over 50,257 tokens it never draws what is rarer than its grid allows and
samples a sharper distribution than asked for. Here the inverse of the cumulative distribution is taken in two stages,
blocks then members, with cumulative sums and the uniform in float64 and no float64 copy of the distribution.
"""

import math

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ddlib.utils.validation import require, visible


def _invert(mass: Float[Tensor, "N K"], target: Float64[Tensor, "N"]) -> tuple[Tensor, Tensor]:
    """Index of the first cumulative sum above ``target`` (never one of zero mass), and what is left of it there."""
    cumulative = mass.to(torch.float64).cumsum(-1)
    total = cumulative[:, -1:]
    reach = target[:, None].clamp(max=torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, reach, right=True).clamp_max(mass.shape[-1] - 1)
    before = (cumulative.gather(1, index) - mass.gather(1, index)).clamp_min(0)
    return index.squeeze(1), (reach - before).squeeze(1).clamp_min(0)


def draw(weights: Float[Tensor, "*n K"], u: Float64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
    """One index per row, drawn in proportion to non-negative ``weights`` by the uniform ``u`` in [0, 1).

    Rows need not be normalised. An index of zero weight is never returned.

    Raises:
        ValueError: a row without mass, or with NaN.
    """
    count = weights.shape[-1]
    rows, shape, u = u.numel(), u.shape, u.flatten()
    width = max(1, math.isqrt(count))
    blocks = -(-count // width)
    padded = torch.nn.functional.pad(weights, (0, blocks * width - count)).reshape(rows, blocks, width)
    sums = padded.sum(-1)
    if visible(sums):
        require(
            bool((sums.sum(-1) > 0).all()), "weights holds a row without mass or with NaN, must have some to draw from"
        )
    block, left = _invert(sums, u * sums.sum(-1, dtype=torch.float64))
    members = padded[torch.arange(rows, device=weights.device), block]
    # block sums are rounded: rescale what is left of the uniform to the block's own float64 total
    chosen = sums.gather(1, block[:, None]).squeeze(1).to(torch.float64)
    left = left / chosen.clamp_min(torch.finfo(torch.float64).tiny) * members.sum(-1, dtype=torch.float64)
    return (block * width + _invert(members, left)[0]).view(shape)


def draw_logits(logits: Float[Tensor, "*n K"], u: Float64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
    """One index per row, drawn from ``softmax(logits)`` by the uniform ``u`` in [0, 1).

    Half-precision logits are raised to float32 first; float32 is enough, since only relative errors of the
    probabilities enter.
    """
    logits = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
    return draw((logits - logits.amax(-1, keepdim=True)).exp(), u)
