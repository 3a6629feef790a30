"""Training kernel on a chunk of logits: one program reads a row, reduces it and overwrites it with
the derivatives.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int, Int64
from torch import Tensor

from ddlib.utils.triton_kernels import kernel

HELD = 32768
"""Number of logits of a row that a program holds in registers: with 32 warps the most without
spills, whether they have 16 or 32 bits.
"""
REST = 4096
"""Number of the other logits that a program loads at a time."""
INNER = 1024
"""The same for an inner span."""


@kernel
def online_softmax(z: tl.tensor, largest: tl.tensor, total: tl.tensor) -> tl.tensor:
    """Online softmax: update a row's largest logit and its sum of exponentials."""
    new = tl.maximum(largest, tl.max(z, 0))
    # -inf - -inf is NaN in a row that has met no logit yet
    safe = tl.where(new == float("-inf"), 0.0, new)
    return new, total * tl.exp(largest - safe) + tl.sum(tl.exp(z - safe), 0)


@kernel
def _store(
    Z: tl.tensor,
    v: tl.tensor,
    z: tl.tensor,
    outer: tl.tensor,
    factor: tl.tensor,
    inner_low: tl.tensor,
    inner_high: tl.tensor,
    K: tl.tensor,
) -> None:
    """Overwrite logits outside of the inner span by the factor times p over the outer span."""
    slope = factor * tl.exp(z.to(tl.float32) - outer)
    outside = (v < K) & ((v < inner_low) | (v >= inner_high))
    tl.store(Z + v, slope.to(Z.dtype.element_ty), mask=outside)


@kernel
def _row(
    Z: tl.tensor,
    WORD: tl.tensor,
    FACTOR: tl.tensor,
    OUTER_LOW: tl.tensor,
    OUTER_HIGH: tl.tensor,
    INNER_LOW: tl.tensor,
    INNER_HIGH: tl.tensor,
    OUT: tl.tensor,
    K: tl.tensor,
    start: tl.tensor,
    row_stride: tl.tensor,
    WHOLE: tl.constexpr,
    BV: tl.constexpr,
    BR: tl.constexpr,
    BI: tl.constexpr,
) -> None:
    """Z[row] becomes FACTOR[row] times p over the row's outer span minus p over its inner span.

    The first column has place ``start``. The first BV logits stay in registers between the sum and
    the derivatives. The others, none if ``WHOLE``, are read again, from a cache: a row has 100 KB
    where V = 50,304. So is the inner span.
    """
    row = tl.program_id(0).to(tl.int64)
    Z += row * row_stride
    word = tl.load(WORD + row)
    low = tl.load(OUTER_LOW + word) - start
    high = tl.load(OUTER_HIGH + word) - start
    if low >= high:
        tl.store(OUT + row, 0.0)
        return
    inner_low = tl.load(INNER_LOW + word) - start
    inner_high = tl.load(INNER_HIGH + word) - start
    inner_m = tl.full((), float("-inf"), tl.float32)
    inner_s = tl.zeros((), tl.float32)
    for first in range(inner_low, inner_high, BI):
        i = first + tl.arange(0, BI)
        z = tl.load(Z + i, mask=i < inner_high, other=float("-inf")).to(tl.float32)
        inner_m, inner_s = online_softmax(z, inner_m, inner_s)
    inner = inner_m + tl.log(inner_s)
    v = tl.arange(0, BV)
    held = tl.load(Z + v, mask=(v >= low) & (v < high), other=float("-inf"))
    m = tl.full((), float("-inf"), tl.float32)
    m, s = online_softmax(held.to(tl.float32), m, tl.zeros((), tl.float32))
    if not WHOLE:
        for first in range(BV, K, BR):
            u = first + tl.arange(0, BR)
            z = tl.load(Z + u, mask=(u >= low) & (u < high), other=float("-inf")).to(tl.float32)
            m, s = online_softmax(z, m, s)
    outer = m + tl.log(s)
    tl.store(OUT + row, outer - inner)
    factor = tl.load(FACTOR + row)
    _store(Z, v, held, outer, factor, inner_low, inner_high, K)
    if not WHOLE:
        for first in range(BV, K, BR):
            u = first + tl.arange(0, BR)
            z = tl.load(Z + u, mask=(u >= low) & (u < high), other=float("-inf"))
            _store(Z, u, z, outer, factor, inner_low, inner_high, K)
    for first in range(inner_low, inner_high, BI):
        i = first + tl.arange(0, BI)
        z = tl.load(Z + i, mask=i < inner_high, other=float("-inf")).to(tl.float32)
        slope = factor * (tl.exp(z - outer) - tl.exp(z - inner))
        tl.store(Z + i, slope.to(Z.dtype.element_ty), mask=i < inner_high)


def overwrite(
    logits: Float[Tensor, "n K"],
    words: Int64[Tensor, "n"],
    factor: Float[Tensor, "n"],
    start: int,
    outer: Int[Tensor, "2 V"],
    inner: Int[Tensor, "2 V"],
) -> Float[Tensor, "n"]:
    """Compute LSE over the outer span of each row's token minus LSE over its inner span.

    0, and no derivatives, for a row with an empty outer span. Sums are accumulated in float32.

    Args:
        logits: of any dtype; become the derivatives times the factor, 0 outside of the outer span.
        words: token of each row.
        factor: float32 factor of each row's derivatives.
        start: place of the first column.
        outer: (2, V) int32, first place and last place + 1 of the tokens under the state of a row
            with this token.
        inner: (2, V) int32, first place and last place + 1 of the tokens that share each token's
            ancestor below the state.
    """
    values = torch.empty_like(factor)
    columns = logits.shape[1]
    held = min(triton.next_power_of_2(columns), HELD)
    with torch.cuda.device_of(logits):
        _row[(len(logits),)](
            logits,
            words,
            factor,
            *outer,
            *inner,
            values,
            columns,
            start,
            logits.stride(0),
            WHOLE=columns <= held,
            BV=held,
            BR=REST,
            BI=INNER,
            num_warps=min(max(held // 1024, 4), 32),
            enable_fp_fusion=True,
        )
    return values.clamp_min_(0)  # rounding
