"""Grouped matrix products for child logits, one group for the rows of each family.

Rows are sorted by family and cut into tiles of one family each, as in mixture-of-experts kernels.
``siblings.py`` builds the tables that map tiles to families.
"""

from typing import NamedTuple

import triton.language as tl

from ddlib.utils.triton_kernels import kernel


class Tiles(NamedTuple):
    """Tile sizes; not tuned on a GPU yet."""

    tokens: int = 64
    columns: int = 64
    depth: int = 64
    warps: int = 4
    stages: int = 3


@kernel
def _place(
    TILE_FAMILY: tl.tensor,
    TILE_TOKEN: tl.tensor,
    START: tl.tensor,
    FIRST: tl.tensor,
    BT: tl.constexpr,
) -> tl.tensor:
    """Return first column and number of columns of a tile's family, the rows of the tile, and a
    mask of valid rows.
    """
    tile = tl.program_id(0)
    family = tl.load(TILE_FAMILY + tile)
    low = tl.load(START + family)
    size = tl.load(START + family + 1) - low
    token = tl.load(TILE_TOKEN + tile) + tl.arange(0, BT)
    return low, size, token, token < tl.load(FIRST + family + 1)


@kernel
def _logits(
    H: tl.tensor,
    W: tl.tensor,
    BIAS: tl.tensor,
    COLUMNS: tl.tensor,
    TOKEN: tl.tensor,
    Z: tl.tensor,
    TILE_FAMILY: tl.tensor,
    TILE_TOKEN: tl.tensor,
    START: tl.tensor,
    FIRST: tl.tensor,
    D: tl.tensor,
    base: tl.tensor,
    h_stride: tl.tensor,
    w_stride: tl.tensor,
    z_stride: tl.tensor,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    """Z[token - base, column of the family] = H W^T + bias."""
    low, size, token, valid = _place(TILE_FAMILY, TILE_TOKEN, START, FIRST, BT)
    v = tl.program_id(1) * BV + tl.arange(0, BV)
    if tl.program_id(1) * BV < size:
        hidden = H + tl.load(TOKEN + token, mask=valid, other=0).to(tl.int64) * h_stride
        row = tl.load(COLUMNS + low + v, mask=v < size, other=0).to(tl.int64)
        z = tl.zeros((BT, BV), tl.float32)
        for begin in range(0, D, BD):
            d = begin + tl.arange(0, BD)
            a = tl.load(
                hidden[:, None] + d[None, :], mask=valid[:, None] & (d[None, :] < D), other=0.0
            )
            b = tl.load(
                W + row[None, :] * w_stride + d[:, None],
                mask=(v[None, :] < size) & (d[:, None] < D),
                other=0.0,
            )
            z = tl.dot(a, b, z, input_precision=PRECISION)
        if HAS_BIAS:
            z += tl.load(BIAS + row, mask=v < size, other=0.0).to(tl.float32)[None, :]
        at = Z + (token - base).to(tl.int64)[:, None] * z_stride + v[None, :]
        tl.store(at, z, mask=valid[:, None] & (v[None, :] < size))


@kernel
def _by_hidden(
    Z: tl.tensor,
    W: tl.tensor,
    COLUMNS: tl.tensor,
    TOKEN: tl.tensor,
    FACTOR: tl.tensor,
    INTO: tl.tensor,
    TILE_FAMILY: tl.tensor,
    TILE_TOKEN: tl.tensor,
    START: tl.tensor,
    FIRST: tl.tensor,
    D: tl.tensor,
    base: tl.tensor,
    w_stride: tl.tensor,
    z_stride: tl.tensor,
    PRECISION: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    """INTO[row] += FACTOR[row] Z W; each row is in one tile."""
    low, size, token, valid = _place(TILE_FAMILY, TILE_TOKEN, START, FIRST, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    total = tl.zeros((BT, BD), tl.float32)
    for begin in range(0, size, BV):
        v = begin + tl.arange(0, BV)
        at = Z + (token - base).to(tl.int64)[:, None] * z_stride + v[None, :]
        row = tl.load(COLUMNS + low + v, mask=v < size, other=0).to(tl.int64)
        b = tl.load(
            W + row[:, None] * w_stride + d[None, :],
            mask=(v[:, None] < size) & (d[None, :] < D),
            other=0.0,
        )
        a = tl.load(at, mask=valid[:, None] & (v[None, :] < size), other=0.0).to(b.dtype)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    factor = tl.load(FACTOR + token - base, mask=valid, other=0.0)
    row = tl.load(TOKEN + token, mask=valid, other=0).to(tl.int64)
    into = INTO + row[:, None] * D + d[None, :]
    inside = valid[:, None] & (d[None, :] < D)
    total = tl.load(into, mask=inside, other=0.0).to(tl.float32) + total * factor[:, None]
    tl.store(into, total.to(INTO.dtype.element_ty), mask=inside)


@kernel
def _by_weight(
    Z: tl.tensor,
    H: tl.tensor,
    FACTOR: tl.tensor,
    COLUMNS: tl.tensor,
    TOKEN: tl.tensor,
    INTO: tl.tensor,
    BIAS: tl.tensor,
    START: tl.tensor,
    FIRST: tl.tensor,
    D: tl.tensor,
    base: tl.tensor,
    h_stride: tl.tensor,
    w_stride: tl.tensor,
    z_stride: tl.tensor,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    """INTO[row] += Z^T (H factor) over the rows of the family.

    One program for each matrix row and part of D.
    """
    family = tl.program_id(0)
    low = tl.load(START + family)
    size = tl.load(START + family + 1) - low
    v = tl.program_id(1) * BV + tl.arange(0, BV)
    d = tl.program_id(2) * BD + tl.arange(0, BD)
    first = tl.load(FIRST + family)
    last = tl.load(FIRST + family + 1)
    if (tl.program_id(1) * BV < size) & (first < last):
        total = tl.zeros((BV, BD), tl.float32)
        offset = tl.zeros((BV,), tl.float32)
        for begin in range(first, last, BT):
            token = begin + tl.arange(0, BT)
            valid = token < last
            at = Z + (token - base).to(tl.int64)[None, :] * z_stride + v[:, None]
            z = tl.load(at, mask=valid[None, :] & (v[:, None] < size), other=0.0)
            factor = tl.load(FACTOR + token - base, mask=valid, other=0.0).to(tl.float32)
            hidden = H + tl.load(TOKEN + token, mask=valid, other=0).to(tl.int64) * h_stride
            h = tl.load(
                hidden[:, None] + d[None, :], mask=valid[:, None] & (d[None, :] < D), other=0.0
            )
            scaled = (h.to(tl.float32) * factor[:, None]).to(h.dtype)
            total = tl.dot(z.to(h.dtype), scaled, total, input_precision=PRECISION)
            offset += tl.sum(z * factor[None, :], 1)
        row = tl.load(COLUMNS + low + v, mask=v < size, other=0).to(tl.int64)
        inside = (v[:, None] < size) & (d[None, :] < D)
        into = INTO + row[:, None] * w_stride + d[None, :]
        tl.store(into, tl.load(into, mask=inside, other=0.0) + total, mask=inside)
        if HAS_BIAS:
            once = v < tl.where(tl.program_id(2) == 0, size, 0)
            tl.store(BIAS + row, tl.load(BIAS + row, mask=once, other=0.0) + offset, mask=once)
