"""Sampling from categorical distributions over large vocabularies, exact far into the tail.

Float32 Gumbel noise cannot exceed 16.6. So over 50,257 tokens it never draws very rare tokens, and
samples a sharper distribution than requested. Here the cumulative distribution is inverted in two
stages, blocks and then members, with cumulative sums and uniforms in float64 and without a float64
copy of the distribution.
"""

import math

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ddlib.utils.validation import due, require


def _invert(mass: Float[Tensor, "N K"], target: Float64[Tensor, "N"]) -> tuple[Tensor, Tensor]:
    """Return the index of the first cumulative sum above ``target`` (never of zero mass), and the
    remainder there.
    """
    cumulative = mass.to(torch.float64).cumsum(-1)
    total = cumulative[:, -1:]
    # below the total, so that the search ends at an entry with mass if the target rounds up to it
    reach = target[:, None].clamp(max=torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, reach, right=True).clamp_max(mass.shape[-1] - 1)
    before = (cumulative.gather(1, index) - mass.gather(1, index)).clamp_min(0)
    return index.squeeze(1), (reach - before).squeeze(1).clamp_min(0)


def draw(weights: Float[Tensor, "*n K"], u: Float64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
    """Draw one index per row in proportion to nonnegative ``weights``, from the uniforms ``u`` in
    [0, 1).

    Rows need not be normalised. An index of zero weight is never returned.

    Raises:
        ValueError: a row of zeros, or with NaN.
    """
    count = weights.shape[-1]
    rows = u.numel()
    shape = u.shape
    u = u.flatten()
    width = max(1, math.isqrt(count))
    blocks = -(-count // width)
    padded = torch.nn.functional.pad(weights, (0, blocks * width - count)).reshape(
        rows, blocks, width
    )
    sums = padded.sum(-1)
    if due(sums):
        require(
            bool((sums.sum(-1) > 0).all()),
            "weights holds a row that is 0 everywhere or has NaN, must have a positive sum in "
            "each row",
        )
    block, remainder = _invert(sums, u * sums.sum(-1, dtype=torch.float64))
    members = padded[torch.arange(rows, device=weights.device), block]
    # block sums are rounded: rescale the remainder of the uniform to the block's float64 total
    block_mass = sums.gather(1, block[:, None]).squeeze(1).to(torch.float64)
    remainder = (
        remainder
        / block_mass.clamp_min(torch.finfo(torch.float64).tiny)
        * members.sum(-1, dtype=torch.float64)
    )
    return (block * width + _invert(members, remainder)[0]).view(shape)


def draw_logits(logits: Float[Tensor, "*n K"], u: Float64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
    """Draw one index per row from ``softmax(logits)``, from the uniforms ``u`` in [0, 1).

    Half-precision logits are cast to float32 first; float32 suffices, since only relative errors of
    the probabilities matter.
    """
    logits = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
    return draw((logits - logits.amax(-1, keepdim=True)).exp(), u)
