"""The functions of ``ddlib.utils.philox`` as Triton kernels.

On a GPU the formulas in torch launch over a hundred kernels for each draw.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.utils.philox import Word
from ddlib.utils.triton_kernels import kernel

BLOCK = 256
ROWS = 8
"""Words that a program scrambles."""

_keyed = partial(kernel, do_not_specialize=["k0", "k1", "number"])
"""Decorator of kernels that are not compiled anew for each key."""


@kernel
def _rounds(
    c0: tl.tensor,
    c1: tl.tensor,
    c2: tl.tensor,
    c3: tl.tensor,
    k0: tl.tensor,
    k1: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Four words in the shape of ``c0``; products of 32-bit words are exact in 64 bits."""
    zero = c0 * 0
    low = ((zero + 1) << 32) - 1
    c1 = zero + c1
    c2 = zero + c2
    c3 = zero + c3
    k0 = zero + k0
    k1 = zero + k1
    for _ in range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = (p1 >> 32) ^ c1 ^ k0
        c1 = p1 & low
        c2 = (p0 >> 32) ^ c3 ^ k1
        c3 = p0 & low
        k0 = (k0 + 0x9E3779B9) & low
        k1 = (k1 + 0xBB67AE85) & low
    return c0, c1, c2, c3


@kernel
def _words(
    C0: tl.tensor,
    C1: tl.tensor,
    C2: tl.tensor,
    C3: tl.tensor,
    K0: tl.tensor,
    K1: tl.tensor,
    OUT: tl.tensor,
    size: tl.tensor,
    B: tl.constexpr,
) -> None:
    """OUT[i, j] becomes word i of counter j."""
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    inside = at < size
    w0, w1, w2, w3 = _rounds(
        tl.load(C0 + at, mask=inside, other=0).to(tl.uint64),
        tl.load(C1 + at, mask=inside, other=0).to(tl.uint64),
        tl.load(C2 + at, mask=inside, other=0).to(tl.uint64),
        tl.load(C3 + at, mask=inside, other=0).to(tl.uint64),
        tl.load(K0 + at, mask=inside, other=0).to(tl.uint64),
        tl.load(K1 + at, mask=inside, other=0).to(tl.uint64),
    )
    tl.store(OUT + at, w0.to(tl.int64), mask=inside)
    tl.store(OUT + size + at, w1.to(tl.int64), mask=inside)
    tl.store(OUT + 2 * size + at, w2.to(tl.int64), mask=inside)
    tl.store(OUT + 3 * size + at, w3.to(tl.int64), mask=inside)


@_keyed
def _uniforms(
    INDEX: tl.tensor,
    K0: tl.tensor,
    K1: tl.tensor,
    OUT: tl.tensor,
    k0: tl.int64,
    k1: tl.int64,
    number: tl.int64,
    rows: tl.int64,
    per_row: tl.int64,
    OF_ROW: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """OUT[i, j] becomes uniform number j of row i; a counter gives two."""
    pairs = (per_row + 1) // 2
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    row = at // pairs
    pair = at % pairs
    inside = row < rows
    index = tl.load(INDEX + row, mask=inside, other=0).to(tl.uint64)
    if OF_ROW:
        key0 = tl.load(K0 + row, mask=inside, other=0).to(tl.uint64)
        key1 = tl.load(K1 + row, mask=inside, other=0).to(tl.uint64)
    else:
        key0 = k0.to(tl.uint64)
        key1 = k1.to(tl.uint64)
    low = ((index * 0 + 1) << 32) - 1
    w0, w1, w2, w3 = _rounds(
        pair.to(tl.uint64), number.to(tl.uint64), index & low, index >> 32, key0, key1
    )
    first = (((w0 >> 5) << 26) + (w2 >> 6)).to(tl.int64).to(tl.float64)
    second = (((w1 >> 5) << 26) + (w3 >> 6)).to(tl.int64).to(tl.float64)
    place = OUT + row * per_row + 2 * pair
    # powers of two: the product is exact, as the quotient is
    tl.store(place, first * 1.1102230246251565e-16, mask=inside)
    tl.store(place + 1, second * 1.1102230246251565e-16, mask=inside & (2 * pair + 1 < per_row))


@_keyed
def _scrambled(
    WORDS: tl.tensor,
    K0: tl.tensor,
    K1: tl.tensor,
    OUT: tl.tensor,
    k0: tl.int64,
    k1: tl.int64,
    number: tl.int64,
    size: tl.int64,
    OF_ROW: tl.constexpr,
    REVERSE: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """OUT[i] becomes word i with its bits flipped by chances of the bits above."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    inside = row < size
    words = tl.load(WORDS + row, mask=inside, other=0)
    bit = tl.arange(0, 32)[None, :].to(tl.int64)
    if REVERSE:
        words = tl.sum(((words[:, None] >> bit) & 1) << (31 - bit), 1)
    if OF_ROW:
        key0 = tl.load(K0 + row, mask=inside, other=0).to(tl.uint64)[:, None]
        key1 = tl.load(K1 + row, mask=inside, other=0).to(tl.uint64)[:, None]
    else:
        key0 = k0.to(tl.uint64)
        key1 = k1.to(tl.uint64)
    above = (words[:, None] >> (32 - bit)).to(tl.uint64)
    chance, _, _, _ = _rounds(above, bit.to(tl.uint64), number.to(tl.uint64), above * 0, key0, key1)
    flips = tl.sum((chance.to(tl.int64) & 1) << (31 - bit), 1)
    tl.store(OUT + row, words ^ flips, mask=inside)


def philox(counter: Sequence[Word], key: Sequence[Word]) -> tuple[Word, ...]:
    """Return the four words of ``ddlib.utils.philox.philox``, on the device of the counter's first
    word, a tensor.
    """
    place = counter[0]
    numbers = [word for word in (*counter, *key) if isinstance(word, Tensor)]
    shape = torch.broadcast_shapes(*(word.shape for word in numbers))
    inputs = [
        word.expand(shape).contiguous() if isinstance(word, Tensor) else place.new_full(shape, word)
        for word in (*counter, *key)
    ]
    outputs = torch.empty((4, *shape), dtype=torch.int64, device=place.device)
    size = outputs[0].numel()
    with torch.cuda.device_of(outputs):
        _words[(triton.cdiv(size, BLOCK),)](*inputs, outputs, size, B=BLOCK)
    return outputs.unbind(0)


def uniforms(
    index: Int64[Tensor, "B"], shape: Sequence[int], draw: int, key: Sequence[Word]
) -> Float64[Tensor, "B *n"]:
    """As ``ddlib.utils.philox.uniforms``, to the bit."""
    per_row = math.prod(shape[1:])
    out = torch.empty(tuple(shape), dtype=torch.float64, device=index.device)
    programs = triton.cdiv(len(index) * ((per_row + 1) // 2), BLOCK)
    if programs:
        sizes = len(index), per_row
        _launch(_uniforms, programs, index, key, out, draw, *sizes, B=BLOCK)
    return out


def scramble(
    words: Int64[Tensor, "B"], number: int, key: Sequence[Word], reverse: bool
) -> Int64[Tensor, "B"]:
    """As ``ddlib.utils.philox.scramble``, to the bit."""
    out = torch.empty_like(words, memory_format=torch.contiguous_format)
    programs = triton.cdiv(len(words), ROWS)
    if programs:
        _launch(_scrambled, programs, words, key, out, number, len(words), REVERSE=reverse, R=ROWS)
    return out


def _launch(
    function: Any,
    programs: int,
    rows: Tensor,
    key: Sequence[Word],
    out: Tensor,
    *sizes: int,
    **tiles: int,
) -> None:
    """Launch a kernel of numbers of rows, whose keys are two numbers or a column for each."""
    rows = rows.contiguous()
    of_row = isinstance(key[0], Tensor)
    columns = [word.flatten().contiguous() for word in key] if of_row else [rows, rows]
    numbers = [0, 0] if of_row else key
    with torch.cuda.device_of(out):
        function[(programs,)](rows, *columns, out, *numbers, *sizes, OF_ROW=of_row, **tiles)
