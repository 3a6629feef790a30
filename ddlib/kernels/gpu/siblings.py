"""Losses of child logits on a GPU: as ``ddlib.kernels.sibling_loss``, without synchronising the
host.

The number of rows of a family is available on the device only. So the maximum number of programs is
launched, and those without work return at once. A buffer holds the logits of a chunk of rows, as
wide as the largest family.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Int, Int64
from torch import Tensor

from ddlib.kernels import fused
from ddlib.kernels.fused import FlatBatch, LossPart, Work
from ddlib.kernels.gpu import grouped_gemm, precision
from ddlib.kernels.gpu.grouped_gemm import Tiles
from ddlib.kernels.gpu.inplace_softmax import overwrite
from ddlib.kernels.sibling_loss import FamilyQuery, family_queries
from ddlib.parameterization.tree_softmax import Children, Families

TILES = Tiles()


class Groups(NamedTuple):
    """Rows sorted by family; rows that need no logit of this level belong to an extra, empty family
    after the last.
    """

    token: Int64[Tensor, "N"]
    """Indices of the rows, grouped by family."""
    outer: Int[Tensor, "2 N"]
    """First column and last column + 1 of each row's family, counted in the family."""
    inner: Int[Tensor, "2 N"]
    """The same of its target child."""
    first: Int64[Tensor, "n"]
    """Index of the first row of each family, and the end of the last."""
    start: Int[Tensor, "n"]
    """Index of the first column of each family, and the end of the last."""


@dataclass(frozen=True)
class Grouped(LossPart):
    """All rows in plain levels of the process: those of each family, for each level of the tree."""

    levels: tuple[tuple[Families, Groups], ...]

    @classmethod
    def of(
        cls,
        children: Children,
        levels: Sequence[int],
        rows: FlatBatch,
        level: Int64[Tensor, "N"],
        hard: bool,
    ) -> "Grouped":
        """Group the rows of a batch; arguments as ``family_queries``."""
        queries = family_queries(children, levels, rows.x, level, hard)
        return cls(tuple((query.families, groups_of(query)) for query in queries))


@fused.add.register
def _add_grouped(part: Grouped, work: Work) -> None:
    work = work._replace(
        layer=work.layer.each(lambda p: p if p.stride(-1) == 1 else p.contiguous())
    )
    for families, groups in part.levels:
        length = work.budget.rows(families.widest)
        for base in range(0, len(groups.token), length):
            _chunk(families, groups, base, min(base + length, len(groups.token)), work)


def groups_of(query: FamilyQuery, count: int | None = None) -> Groups:
    """Group rows by family.

    Args:
        query: the rows and their families.
        count: number of rows that need a family, if the host has it.
    """
    families, needed, child, parent = query
    empty = len(families.sizes)
    family = torch.where(needed, parent, empty)
    token = family.argsort(stable=True)[:count]
    zero = family.new_zeros(1)
    tokens = zero.repeat(empty + 1).index_add_(0, family, torch.ones_like(family))
    first = torch.cat([zero, tokens.cumsum(0)])
    sizes = families.limits.diff()[family[token]]
    target = families.rank[child[token]]
    outer = torch.stack([torch.zeros_like(sizes), sizes]).to(torch.int32)
    inner = torch.stack([target, target + 1]).to(torch.int32)
    return Groups(token, outer, inner, first, families.limits)


def _tiles(first: Int64[Tensor, "n"], length: int) -> tuple[Tensor, Tensor]:
    """Return family and first row of each tile for at most ``length`` rows.

    Spare tiles have the empty family.
    """
    # without the empty family, which needs no tiles
    tiles = -(-first.diff()[:-1] // TILES.tokens)
    ends = tiles.cumsum(0)
    number = torch.arange(triton.cdiv(length, TILES.tokens) + len(tiles), device=first.device)
    family = torch.searchsorted(ends, number, right=True)
    before = torch.cat([ends.new_zeros(1), ends])[family]
    return family, first[family] + (number - before) * TILES.tokens


def _chunk(families: Families, groups: Groups, base: int, end: int, work: Work) -> None:
    (hidden, weight, bias), _, scale, _, values, gradients = work
    dim = hidden.shape[1]
    length = end - base
    rows = groups.token[base:end]
    # families outside of the chunk become empty
    first = groups.first.clamp(base, end)
    tiles = _tiles(first, length)
    logits = torch.empty(length, families.widest, dtype=torch.float32, device=hidden.device)
    common = dict(D=dim, base=base, z_stride=logits.stride(0))
    cut: dict[str, Any] = dict(
        PRECISION=precision(),
        BT=TILES.tokens,
        BV=TILES.columns,
        BD=TILES.depth,
        num_warps=TILES.warps,
        num_stages=TILES.stages,
    )
    tables = (*tiles, groups.start, first)
    column_tiles = triton.cdiv(families.widest, TILES.columns)
    depth_tiles = triton.cdiv(dim, TILES.depth)
    with torch.cuda.device_of(hidden):
        grouped_gemm._logits[(len(tiles[0]), column_tiles)](
            hidden,
            weight,
            weight if bias is None else bias,
            families.columns,
            groups.token,
            logits,
            *tables,
            **common,
            h_stride=hidden.stride(0),
            w_stride=weight.stride(0),
            HAS_BIAS=bias is not None,
            **cut,
        )
        number = torch.arange(base, end, device=hidden.device)
        ones = logits.new_ones(length)
        nats = overwrite(logits, number, ones, 0, groups.outer, groups.inner)
        values.index_add_(0, rows, nats.to(values.dtype))
        if gradients is None or scale is None:
            return
        factor = scale[rows].to(torch.float32)
        grouped_gemm._by_hidden[(len(tiles[0]), depth_tiles)](
            logits,
            weight,
            families.columns,
            groups.token,
            factor,
            gradients.hidden,
            *tables,
            **common,
            w_stride=weight.stride(0),
            **cut,
        )
        grouped_gemm._by_weight[(len(families.sizes), column_tiles, depth_tiles)](
            logits,
            hidden,
            factor,
            families.columns,
            groups.token,
            gradients.weight,
            gradients.weight if gradients.bias is None else gradients.bias,
            groups.start,
            first,
            **common,
            h_stride=hidden.stride(0),
            w_stride=gradients.weight.stride(0),
            HAS_BIAS=gradients.bias is not None,
            **cut,
        )
