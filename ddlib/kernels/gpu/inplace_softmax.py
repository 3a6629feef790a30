"""Training kernel on a chunk of logits: one program reads a row, reduces it and overwrites it with
the derivatives.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from ddlib.kernels.fused import Divergence, FlatBatch, Reader
from ddlib.utils.triton_kernels import kernel

COLUMNS = 4096
"""Number of logits of a row that a program loads at a time; other numbers were not tried on
a GPU.
"""


@kernel
def online_softmax(z: tl.tensor, largest: tl.tensor, total: tl.tensor) -> tl.tensor:
    """Online softmax: update a row's largest logit and its sum of exponentials."""
    new = tl.maximum(largest, tl.max(z, 0))
    # -inf - -inf is NaN in a row that has met no logit yet
    safe = tl.where(new == float("-inf"), 0.0, new)
    return new, total * tl.exp(largest - safe) + tl.sum(tl.exp(z - safe), 0)


@kernel
def _row(
    Z: tl.tensor,
    WORD: tl.tensor,
    OUTER_LOW: tl.tensor,
    OUTER_HIGH: tl.tensor,
    INNER_LOW: tl.tensor,
    INNER_HIGH: tl.tensor,
    OUT: tl.tensor,
    K: tl.tensor,
    start: tl.tensor,
    row_stride: tl.tensor,
    BV: tl.constexpr,
) -> None:
    """Z[row] becomes p over the row's outer span minus p over its inner span.

    The first column has place ``start``.
    """
    row = tl.program_id(0).to(tl.int64)
    Z += row * row_stride
    word = tl.load(WORD + row)
    low = tl.load(OUTER_LOW + word) - start
    high = tl.load(OUTER_HIGH + word) - start
    inner_low = tl.load(INNER_LOW + word) - start
    inner_high = tl.load(INNER_HIGH + word) - start
    m = tl.full((), float("-inf"), tl.float32)
    s = tl.zeros((), tl.float32)
    inner_m = m
    inner_s = s
    for first in range(0, K, BV):
        v = first + tl.arange(0, BV)
        z = tl.load(Z + v, mask=(v >= low) & (v < high), other=float("-inf")).to(tl.float32)
        m, s = online_softmax(z, m, s)
        if (first < inner_high) & (first + BV > inner_low):
            z = tl.where((v >= inner_low) & (v < inner_high), z, float("-inf"))
            inner_m, inner_s = online_softmax(z, inner_m, inner_s)
    outer = m + tl.log(s)
    inner = inner_m + tl.log(inner_s)
    tl.store(OUT + row, outer - inner)
    for first in range(0, K, BV):
        v = first + tl.arange(0, BV)
        z = tl.load(Z + v, mask=(v >= low) & (v < high), other=float("-inf")).to(tl.float32)
        slope = tl.exp(z - outer)
        if (first < inner_high) & (first + BV > inner_low):
            slope -= tl.exp(tl.where((v >= inner_low) & (v < inner_high), z - inner, float("-inf")))
        tl.store(Z + v, slope.to(Z.dtype.element_ty), mask=v < K)


class InPlace(Divergence):
    """LSE over the outer span of each row's token minus LSE over its inner span, for logits of any
    dtype.

    Sums are accumulated in float32. Columns outside of the outer span have derivative 0.

    Args:
        start: place of the first column.
        outer: (2, V) int32, first place and last place + 1 of the tokens under the state of a row
            with this token.
        inner: (2, V) int32, first place and last place + 1 of the tokens that share each token's
            ancestor below the state.
    """

    in_float32 = False

    def __init__(self, start: int, outer: Int[Tensor, "2 V"], inner: Int[Tensor, "2 V"]) -> None:
        self.start = start
        self.outer = outer
        self.inner = inner

    def __call__(
        self,
        logits: Float[Tensor, "n K"],
        rows: FlatBatch,
        derive: bool,
        read: Reader | None = None,
    ) -> Float[Tensor, "n"]:
        """Compute divergences and write derivatives into ``logits``, for any ``derive``.

        Used only in training.

        Log-probabilities are not read: the kernel keeps none.
        """
        values = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        with torch.cuda.device_of(logits):
            _row[(len(logits),)](
                logits,
                rows.x,
                *self.outer,
                *self.inner,
                values,
                logits.shape[1],
                self.start,
                logits.stride(0),
                BV=min(triton.next_power_of_2(logits.shape[1]), COLUMNS),
                num_warps=8,
                enable_fp_fusion=True,
            )
        return values.clamp_min_(0)  # rounding
