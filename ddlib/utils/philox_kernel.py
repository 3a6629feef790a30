"""Philox-4x32-10 as one Triton kernel: on a GPU the formula in torch launches 120 kernels for each
draw.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from jaxtyping import Int64
from torch import Tensor

from ddlib.utils.triton_kernels import kernel

BLOCK = 256


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
    """OUT[i, j] becomes word i of counter j; products of 32-bit words are exact in 64 bits."""
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    inside = at < size
    c0 = tl.load(C0 + at, mask=inside, other=0).to(tl.uint64)
    c1 = tl.load(C1 + at, mask=inside, other=0).to(tl.uint64)
    c2 = tl.load(C2 + at, mask=inside, other=0).to(tl.uint64)
    c3 = tl.load(C3 + at, mask=inside, other=0).to(tl.uint64)
    k0 = tl.load(K0 + at, mask=inside, other=0).to(tl.uint64)
    k1 = tl.load(K1 + at, mask=inside, other=0).to(tl.uint64)
    low = (tl.full((B,), 1, tl.uint64) << 32) - 1
    for _ in range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = (p1 >> 32) ^ c1 ^ k0
        c1 = p1 & low
        c2 = (p0 >> 32) ^ c3 ^ k1
        c3 = p0 & low
        k0 = (k0 + 0x9E3779B9) & low
        k1 = (k1 + 0xBB67AE85) & low
    tl.store(OUT + at, c0.to(tl.int64), mask=inside)
    tl.store(OUT + size + at, c1.to(tl.int64), mask=inside)
    tl.store(OUT + 2 * size + at, c2.to(tl.int64), mask=inside)
    tl.store(OUT + 3 * size + at, c3.to(tl.int64), mask=inside)


def words(
    counter: Sequence[Int64[Tensor, "..."]], key: Sequence[Int64[Tensor, "..."]]
) -> tuple[Int64[Tensor, "..."], ...]:
    """Return the four words of ``ddlib.utils.random.philox``, on the device of the counter's first
    word.

    Args:
        counter: four words of counter on that device.
        key: two words of key; those on a CPU are single numbers.
    """
    place = counter[0]
    shape = torch.broadcast_shapes(*(word.shape for word in (*counter, *key)))
    inputs = [
        word.expand(shape).contiguous()
        if word.device == place.device
        else place.new_full(shape, int(word))
        for word in (*counter, *key)
    ]
    outputs = torch.empty((4, *shape), dtype=torch.int64, device=place.device)
    size = outputs[0].numel()
    with torch.cuda.device_of(outputs):
        _words[(triton.cdiv(size, BLOCK),)](*inputs, outputs, size, B=BLOCK)
    return outputs.unbind(0)
