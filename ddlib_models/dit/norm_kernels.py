"""Triton kernels of a residual branch and the adaptive normalisation after it, as operators of
torch.

    x' = x + gate y,    h = norm(x') w (1 + scale) + shift

One pass each way. A program of the backward pass has some rows of a sequence: it writes the
gradients of x and y by row, and its part of the sums over positions, from which those of the
vectors follow. With s = sum of dh xhat over the positions of a sequence: d scale = w s, d w = sum
of (1 + scale) s over the sequences, d shift = sum of dh, d gate = sum of dx' y.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

EPS = 1e-5
"""Added to the variance, as in ``torch.nn.functional.layer_norm``."""
ROWS = 32
"""Rows of a program of the backward pass; other numbers were not tried on a GPU."""


@triton.jit
def _forward(
    X: tl.tensor,
    Y: tl.tensor,
    GATE: tl.tensor,
    WEIGHT: tl.tensor,
    SHIFT: tl.tensor,
    SCALE: tl.tensor,
    NEXT: tl.tensor,
    H: tl.tensor,
    MEAN: tl.tensor,
    RSTD: tl.tensor,
    L: tl.tensor,
    D: tl.tensor,
    gate_stride: tl.tensor,
    shift_stride: tl.tensor,
    scale_stride: tl.tensor,
    eps: tl.tensor,
    GATED: tl.constexpr,
    SUM: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    sequence = row // L
    d = tl.arange(0, BD)
    inside = d < D
    at = row * D + d
    x = tl.load(X + at, mask=inside, other=0.0).to(SUM)
    if GATED:
        gate = tl.load(GATE + sequence * gate_stride + d, mask=inside, other=0.0).to(SUM)
        x += gate * tl.load(Y + at, mask=inside, other=0.0).to(SUM)
        rounded = x.to(NEXT.dtype.element_ty)
        tl.store(NEXT + at, rounded, mask=inside)
        x = rounded.to(SUM)  # statistics are those of the result, which the backward pass reads
    mean = tl.sum(x, 0) / D
    centred = tl.where(inside, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 0) / D + eps)
    weight = tl.load(WEIGHT + d, mask=inside, other=0.0).to(SUM)
    scale = tl.load(SCALE + sequence * scale_stride + d, mask=inside, other=0.0).to(SUM)
    shift = tl.load(SHIFT + sequence * shift_stride + d, mask=inside, other=0.0).to(SUM)
    h = centred * rstd * weight * (1 + scale) + shift
    tl.store(H + at, h.to(H.dtype.element_ty), mask=inside)
    tl.store(MEAN + row, mean)
    tl.store(RSTD + row, rstd)


@triton.jit
def _backward(
    DNEXT: tl.tensor,
    DH: tl.tensor,
    X: tl.tensor,
    Y: tl.tensor,
    GATE: tl.tensor,
    WEIGHT: tl.tensor,
    SCALE: tl.tensor,
    MEAN: tl.tensor,
    RSTD: tl.tensor,
    DX: tl.tensor,
    DY: tl.tensor,
    SUMS: tl.tensor,
    L: tl.tensor,
    D: tl.tensor,
    gate_stride: tl.tensor,
    scale_stride: tl.tensor,
    GATED: tl.constexpr,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    """SUMS[:, sequence, tile] = sums over the rows of a tile of dh, dh xhat, and dx' y."""
    sequence = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    d = tl.arange(0, BD)
    inside = d < D
    scale = tl.load(SCALE + sequence * scale_stride + d, mask=inside, other=0.0).to(SUM)
    weight = tl.load(WEIGHT + d, mask=inside, other=0.0).to(SUM) * (1 + scale)
    gate = tl.zeros((BD,), SUM)
    if GATED:
        gate = tl.load(GATE + sequence * gate_stride + d, mask=inside, other=0.0).to(SUM)
    by_shift = tl.zeros((BD,), SUM)
    by_scale = by_shift
    by_gate = by_shift
    for position in range(tile * ROWS, tl.minimum((tile + 1) * ROWS, L)):
        row = sequence * L + position
        at = row * D + d
        dh = tl.load(DH + at, mask=inside, other=0.0).to(SUM)
        x = tl.load(X + at, mask=inside, other=0.0).to(SUM)
        rstd = tl.load(RSTD + row)
        normal = tl.where(inside, (x - tl.load(MEAN + row)) * rstd, 0.0)
        slope = dh * weight
        mean = tl.sum(slope, 0) / D
        along = tl.sum(slope * normal, 0) / D
        dx = rstd * (slope - mean - normal * along)
        by_shift += dh
        by_scale += dh * normal
        if GATED:
            dx += tl.load(DNEXT + at, mask=inside, other=0.0).to(SUM)
            by_gate += dx * tl.load(Y + at, mask=inside, other=0.0).to(SUM)
            tl.store(DY + at, (gate * dx).to(DY.dtype.element_ty), mask=inside)
        tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=inside)
    sums = SUMS + (sequence * tl.num_programs(1) + tile) * D + d
    step = tl.num_programs(0).to(tl.int64) * tl.num_programs(1) * D
    tl.store(sums, by_shift, mask=inside)
    tl.store(sums + step, by_scale, mask=inside)
    if GATED:
        tl.store(sums + 2 * step, by_gate, mask=inside)


@torch.library.custom_op("ddlib_models::adaptive_norm", mutates_args=())
def adaptive_norm(
    x: Tensor,
    y: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    shift: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute x + gate y and its modulated normalisation.

    Args:
        x: activations (B, L, D).
        y: output of a branch (B, L, D); None for x alone.
        gate: (B, 1, D) or (1, 1, D), as shift and scale; None without y.
        weight: scale of the normalisation (D,).
        shift: see the module.
        scale: see the module.
        dtype: that of the normalisation.

    Returns:
        x + gate y in the dtype of x, or a tensor without elements if there is no y; the
        normalisation; mean, and inverse of the standard deviation, of each row.
    """
    rows, length, width = len(x), x.shape[1], x.shape[2]
    result = _empty(x, y, dtype)
    if x.numel() == 0:
        return result
    x, branch = x.contiguous(), x if y is None else y.contiguous()
    vectors = [_by_rows(vector) for vector in (shift if gate is None else gate, shift, scale)]
    with torch.cuda.device_of(x):
        _forward[(rows * length,)](
            x,
            branch,
            vectors[0],
            weight,
            *vectors[1:],
            *result,
            length,
            width,
            *map(_stride, vectors),
            EPS,
            GATED=y is not None,
            **_cut(x),
        )
    return result


@torch.library.custom_op("ddlib_models::adaptive_norm_backward", mutates_args=())
def adaptive_norm_backward(
    by_next: Tensor,
    by_norm: Tensor,
    x: Tensor,
    y: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    scale: Tensor,
    mean: Tensor,
    rstd: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of ``adaptive_norm``.

    Args:
        by_next: gradient of the first result, read if there is a y.
        by_norm: gradient of the second.
        x: the first result; x itself if there is no y.
        y: see ``adaptive_norm``, and so are the following.
        gate: see there.
        weight: see there.
        scale: see there.
        mean: the third result.
        rstd: the fourth.

    Returns:
        The gradients of x and y, the latter without elements if there is no y; and (3, B, tiles, D)
        sums over the rows of each tile, of dh, dh xhat and dx' y.
    """
    result = _empty_gradients(x, y)
    if x.numel() == 0:
        return result[0], result[1], result[2].zero_()
    x, by_norm, by_next = x.contiguous(), by_norm.contiguous(), by_next.contiguous()
    branch = x if y is None else y.contiguous()
    vectors = [_by_rows(vector) for vector in (scale if gate is None else gate, scale)]
    with torch.cuda.device_of(x):
        _backward[(len(x), result[2].shape[2])](
            by_next,
            by_norm,
            x,
            branch,
            vectors[0],
            weight,
            vectors[1],
            mean,
            rstd,
            *result,
            x.shape[1],
            x.shape[2],
            *map(_stride, vectors),
            GATED=y is not None,
            ROWS=ROWS,
            **_cut(x),
        )
    return result


def _empty(x: Tensor, y: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return memory for the results of ``adaptive_norm``."""
    wide = torch.promote_types(x.dtype, torch.float32)
    statistics = [x.new_empty(x.shape[:2], dtype=wide) for _ in range(2)]
    sizes = (0,) if y is None else x.shape
    return x.new_empty(sizes), x.new_empty(x.shape, dtype=dtype), *statistics


def _empty_gradients(x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for the results of ``adaptive_norm_backward``."""
    wide = torch.promote_types(x.dtype, torch.float32)
    tiles = -(-x.shape[1] // ROWS)
    sums = x.new_empty(3, len(x), tiles, x.shape[2], dtype=wide)
    by_y = x.new_empty(0) if y is None else y.new_empty(y.shape)
    return x.new_empty(x.shape), by_y, sums


def _by_rows(vector: Tensor) -> Tensor:
    """Return vectors (B, 1, D) whose entries are contiguous."""
    return vector if vector.stride(-1) == 1 else vector.contiguous()


def _stride(vector: Float[Tensor, "B 1 D"]) -> int:
    """Return the distance of the vectors of two sequences: 0 for one that all share."""
    return vector.stride(0) if len(vector) > 1 else 0


def _cut(x: Tensor) -> dict[str, Any]:
    """Return dtype of the sums, tile size, and options of the compiler."""
    columns = triton.next_power_of_2(x.shape[2])
    return dict(
        SUM=tl.float64 if x.dtype == torch.float64 else tl.float32,
        BD=columns,
        num_warps=_warps(columns),
        enable_fp_fusion=True,
    )


def _warps(columns: int) -> int:
    """Return the warps of a program, 8 entries of a row for each thread up to a width of 2,048."""
    return min(max(columns // 256, 1), 8)


@adaptive_norm.register_fake
def _(x: Tensor, y: Tensor | None, *vectors: Any) -> Any:
    return _empty(x, y, vectors[-1])


@adaptive_norm_backward.register_fake
def _(by_next: Any, by_norm: Any, x: Tensor, y: Tensor | None, *vectors: Any) -> Any:
    return _empty_gradients(x, y)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, y, gate, weight, shift, scale, _ = inputs
    following, _, mean, rstd = output
    ctx.save_for_backward(x if y is None else following, y, gate, weight, shift, scale, mean, rstd)


def _derive(ctx: Any, by_next: Tensor, by_norm: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, y, gate, weight, shift, scale, mean, rstd = ctx.saved_tensors
    by_x, by_y, sums = adaptive_norm_backward(
        by_next, by_norm, x, y, gate, weight, scale, mean, rstd
    )
    by_shift, by_scale, by_gate = sums.sum(2, keepdim=True)
    by_weight = (by_scale * (1 + scale)).sum((0, 1))
    return (
        by_x,
        None if y is None else by_y,
        None if gate is None else by_gate.sum_to_size(gate.shape).to(gate.dtype),
        by_weight.to(weight.dtype),
        by_shift.sum_to_size(shift.shape).to(shift.dtype),
        (by_scale * weight).sum_to_size(scale.shape).to(scale.dtype),
        None,
    )


adaptive_norm.register_autograd(_derive, setup_context=_keep)
