"""Philox-4x32-10 in torch: random words, uniform numbers and scrambled bits as functions of a key.

``ddlib.utils.philox_kernel`` has the same functions for a GPU, where each is one kernel.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Word = Any
"""32-bit word: a number, or an int64 tensor of several."""

LOW = 0xFFFFFFFF


def philox(counter: Sequence[Word], key: Sequence[Word]) -> tuple[Word, ...]:
    """Compute four random words from four words of counter and two of key.

    Words are 32-bit values, numbers or int64 tensors that broadcast against each other. The bits
    are the same on every device. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC
    2011).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap; the wrapped bits are those of the unsigned 64-bit product
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = ((p1 >> 32) & LOW) ^ c1 ^ k0
        c1 = p1 & LOW
        c2 = ((p0 >> 32) & LOW) ^ c3 ^ k1
        c3 = p0 & LOW
        k0 = (k0 + 0x9E3779B9) & LOW
        k1 = (k1 + 0xBB67AE85) & LOW
    return c0, c1, c2, c3


def uniforms(
    index: Int64[Tensor, "B"], shape: Sequence[int], draw: int, key: Sequence[Word]
) -> Float64[Tensor, "B *n"]:
    """Compute uniform numbers in [0, 1) with 53 random bits.

    Args:
        index: number of each row, at least 0.
        shape: that of the result; longer rows begin with the same numbers.
        draw: number of the draw.
        key: two words: numbers, or a column (B, 1) with a word for each row.
    """
    per_row = math.prod(shape[1:])
    block = torch.arange((per_row + 1) // 2, device=index.device)
    row = index[:, None]
    words = philox((block[None], draw, row & LOW, (row >> 32) & LOW), key)
    # 27 and 26 bits fill the mantissa of a float64
    high = torch.stack(words[:2], -1) >> 5
    low = torch.stack(words[2:], -1) >> 6
    uniform = (high * 2**26 + low).to(torch.float64) / 2**53
    return uniform.flatten(1)[:, :per_row].reshape(tuple(shape))


def scramble(
    words: Int64[Tensor, "B"], number: int, key: Sequence[int], reverse: bool
) -> Int64[Tensor, "B"]:
    """Flip each bit of 32-bit words at random, alike for all words that agree in the higher bits.

    Args:
        words: the words.
        number: number of the scrambling.
        key: two words.
        reverse: whether the order of the bits is reversed first.
    """
    bit = torch.arange(32, device=words.device)
    from_top = 31 - bit
    column = words[:, None]
    if reverse:
        words = (((column >> bit) & 1) << from_top).sum(1)
        column = words[:, None]
    # with the position of the bit: prefixes 0 and 00 are one number
    chance = philox((column >> (from_top + 1), bit, number, 0), key)[0]
    return words ^ ((chance & 1) << from_top).sum(1)
