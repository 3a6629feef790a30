"""Forward pass in one kernel: logits are computed tile by tile and reduced at once; no logit is
stored.

Every row keeps four numbers: largest logit and sum of exponentials over its outer and over its
inner span (online softmax: Milakov and Gimelshein, arXiv 1805.02867). A program processes
consecutive rows and loops over the tiles that any of them needs.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int64
from torch import Tensor

from ddlib.kernels.gpu import precision
from ddlib.kernels.gpu.vocab_order import Spans
from ddlib.utils.triton_kernels import kernel

SHARED_MEMORY = 99 * 1024
"""Bytes of shared memory that a program has on every GPU since Ampere."""


class Tiles(NamedTuple):
    """Tile sizes."""

    rows: int
    columns: int
    depth: int
    """Step of the product along D."""
    splits: int
    """Programs that share the columns of the same rows."""
    warps: int
    stages: int


@kernel
def _add(z: tl.tensor, selected: tl.tensor, largest: tl.tensor, total: tl.tensor) -> tl.tensor:
    """Online softmax: update largest logit and sum of each row with the tile's entries selected by
    ``selected``.
    """
    z = tl.where(selected, z, float("-inf"))
    new = tl.maximum(largest, tl.max(z, 1))
    # -inf - -inf is NaN in a row that has met no logit yet
    safe = tl.where(new == float("-inf"), 0.0, new)
    return new, total * tl.exp(largest - safe) + tl.sum(tl.exp(z - safe[:, None]), 1)


@kernel
def _sums(
    H: tl.tensor,
    W: tl.tensor,
    BIAS: tl.tensor,
    WORDS: tl.tensor,
    INDEX: tl.tensor,
    OUTER_LOW: tl.tensor,
    OUTER_HIGH: tl.tensor,
    INNER_LOW: tl.tensor,
    INNER_HIGH: tl.tensor,
    OUT: tl.tensor,
    N: tl.tensor,
    V: tl.tensor,
    D: tl.tensor,
    row_stride: tl.tensor,
    word_stride: tl.tensor,
    HAS_BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLITS: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    """OUT[split, :, row] = (m, s) of the outer and (m, s) of the inner span, over the tiles of this
    split.
    """
    row = tl.program_id(0) * BT + tl.arange(0, BT)
    split = tl.program_id(1)
    real = row < N
    low = tl.load(OUTER_LOW + row, mask=real, other=V)
    high = tl.load(OUTER_HIGH + row, mask=real, other=0)
    inner_low = tl.load(INNER_LOW + row, mask=real, other=V)
    inner_high = tl.load(INNER_HIGH + row, mask=real, other=0)
    needed = low < high
    first = tl.min(tl.where(needed, low, V), 0) // BV
    last = tl.cdiv(tl.max(tl.where(needed, high, 0), 0), BV)
    inner_first = tl.min(tl.where(needed, inner_low, V), 0)
    inner_last = tl.max(tl.where(needed, inner_high, 0), 0)
    share = tl.cdiv(tl.maximum(last - first, 0), SPLITS)
    hidden = H + tl.load(INDEX + row, mask=real, other=0).to(tl.int64)[:, None] * row_stride
    m = tl.full((BT,), float("-inf"), tl.float32)
    s = tl.zeros((BT,), tl.float32)
    inner_m = m
    inner_s = s
    for tile in range(first + split * share, tl.minimum(first + (split + 1) * share, last)):
        v = tile * BV + tl.arange(0, BV)
        word = tl.load(WORDS + v, mask=v < V, other=0).to(tl.int64)
        column = W + word[None, :] * word_stride
        z = tl.zeros((BT, BV), tl.float32)
        for start in range(0, D, BD):
            d = start + tl.arange(0, BD)
            if EVEN:
                a = tl.load(hidden + d[None, :])
                b = tl.load(column + d[:, None])
            else:
                a = tl.load(hidden + d[None, :], mask=d[None, :] < D, other=0.0)
                b = tl.load(column + d[:, None], mask=d[:, None] < D, other=0.0)
            z = tl.dot(a, b, z, input_precision=PRECISION)
        if HAS_BIAS:
            z += tl.load(BIAS + word).to(tl.float32)[None, :]
        m, s = _add(z, (v[None, :] >= low[:, None]) & (v[None, :] < high[:, None]), m, s)
        if (tile * BV < inner_last) & (tile * BV + BV > inner_first):
            inside = (v[None, :] >= inner_low[:, None]) & (v[None, :] < inner_high[:, None])
            inner_m, inner_s = _add(z, inside, inner_m, inner_s)
    out = OUT + split * 4 * N + row
    tl.store(out, m, mask=real)
    tl.store(out + N, s, mask=real)
    tl.store(out + 2 * N, inner_m, mask=real)
    tl.store(out + 3 * N, inner_s, mask=real)


def divergences(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    tokens: Int64[Tensor, "n"],
    spans: Spans,
    index: Int64[Tensor, "N"],
    tiles: Tiles | None = None,
) -> Float[Tensor, "N"]:
    """Compute LSE over the outer span minus LSE over the inner span of every row.

    0 where the outer span is empty.

    It allocates 16 bytes per row and split beside the result. The weight stays in the tokenizer's
    order: its rows are read through ``tokens``, at 8 bytes of index per row of 2 D bytes.

    Args:
        hidden: (N, D) float16, bfloat16 or float32; products are accumulated in float32.
        weight: (V, D) matrix of the output layer, of the same dtype.
        bias: bias of the output layer.
        tokens: the token at each place of ``Order``.
        spans: spans of each row, in places.
        index: permutation of the rows in the order of processing; neighbours should need the same
            columns.
        tiles: tile sizes.
    """
    count, dim = hidden.shape
    hidden, weight = (
        tensor if tensor.stride(1) == 1 else tensor.contiguous() for tensor in (hidden, weight)
    )
    tiles = tiles or default_tiles(hidden)
    sums = torch.empty(tiles.splits, 4, count, dtype=torch.float32, device=hidden.device)
    with torch.cuda.device_of(hidden):
        _sums[(triton.cdiv(count, tiles.rows), tiles.splits)](
            hidden,
            weight,
            weight if bias is None else bias,
            tokens,
            index,
            *(bound[index].to(torch.int32) for bound in spans),
            sums,
            count,
            len(weight),
            dim,
            hidden.stride(0),
            weight.stride(0),
            HAS_BIAS=bias is not None,
            EVEN=dim % tiles.depth == 0,
            PRECISION=precision(),
            SPLITS=tiles.splits,
            BT=tiles.rows,
            BV=tiles.columns,
            BD=tiles.depth,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            enable_fp_fusion=True,
        )
    m, s, inner_m, inner_s = sums.unbind(1)
    difference = (m + s.log()).logsumexp(0) - (inner_m + inner_s.log()).logsumexp(0)
    values = torch.empty_like(difference)
    values[index] = difference
    # NaN in empty spans, the difference of two -inf
    return torch.where(spans.outer_low < spans.outer_high, values.clamp_min(0), 0.0)


def default_tiles(hidden: Float[Tensor, "N D"]) -> Tiles:
    """Return the largest tiles with three stages in shared memory.

    Columns are split until all processors have work.

    On an H200, 128 x 256 tiles with four stages were the fastest of six sizes.
    """
    device = torch.cuda.get_device_properties(hidden.device) if hidden.is_cuda else None
    # missing in torch's type hints
    memory = getattr(device, "shared_memory_per_block_optin", SHARED_MEMORY)
    processors = 1 if device is None else device.multi_processor_count
    for rows, columns, depth in (
        [(64, 64, 32)] if hidden.dtype == torch.float32 else [(128, 256, 64), (128, 128, 64)]
    ):
        stages = min(memory // (hidden.itemsize * depth * (rows + columns)), 4)
        if stages > 2:
            break
    programs = triton.cdiv(len(hidden), rows)
    splits = min(max(triton.cdiv(4 * processors, programs), 1), 16)
    return Tiles(rows, columns, depth, splits, 8, stages)
