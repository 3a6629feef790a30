"""All tokens of a plain hierarchy, or of its plain levels, in one part of a plan."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.kernels import fused, ranges
from ddlib.kernels.block import Block, Part, Rows
from ddlib.kernels.fused import Gradients, Layer
from ddlib.kernels.gpu.online import divergences
from ddlib.kernels.gpu.order import ALIGNED, Order, Segment
from ddlib.kernels.gpu.row import InPlace


@dataclass(frozen=True)
class Ranged(Part):
    """Tokens in levels 1 to ``top``, below which all maps are plain.

    Without gradients one kernel does everything and the host waits for nothing. With gradients the host waits once, to
    learn how many tokens are in each state; then the tokens of a state share products of cuBLAS, in chunks.
    """

    hierarchy: Hierarchy
    top: int
    hard: bool


@fused.add.register
def _ranged(
    part: Ranged,
    layer: Layer,
    rows: Rows,
    scale: Tensor | None,
    held: int,
    values: Tensor,
    gradients: Gradients | None,
) -> None:
    if layer.hidden.dtype == torch.float64:
        _without_kernels(part, layer, rows, scale, held, values, gradients)
        return
    order = Order(part.hierarchy, part.top, part.hard)
    level = order.level(rows)
    spans = order.of(rows, level)
    index = order.rank(level, spans)
    if gradients is None:
        values.add_(divergences(*layer, order.words, spans, index))
    else:
        _train(order, order.segments(rows, level), index, layer, rows, scale, held, values, gradients)


def _train(
    order: Order,
    segments: list[Segment],
    index: Tensor,
    layer: Layer,
    rows: Rows,
    scale: Tensor | None,
    held: int,
    values: Tensor,
    gradients: Gradients,
) -> None:
    """Member by member, on a copy of the matrix and of its gradient with the words in order (V D numbers each)."""
    into = gradients
    if not order.identity:
        bias = None if layer.bias is None else layer.bias[order.words]
        layer = Layer(layer.hidden, layer.weight[order.words], bias)
        into = Gradients.zeros(layer)._replace(hidden=gradients.hidden)
    first = 0
    for segment in segments:
        block = _block(order, segment, index[first : first + segment.tokens])
        fused.add(block, layer, rows, scale, held, values, into)
        first += segment.tokens
    if not order.identity:
        gradients.weight.index_add_(0, order.words, into.weight)
        if gradients.bias is not None and into.bias is not None:
            gradients.bias.index_add_(0, order.words, into.bias)


def _block(order: Order, segment: Segment, index: Tensor) -> Block:
    start, stop = segment.low // ALIGNED * ALIGNED, -(-segment.high // ALIGNED) * ALIGNED
    inner = order.spans[:, segment.child]
    return Block(index, slice(start, stop), InPlace(start, segment.low, segment.high, inner))


def _without_kernels(
    part: Ranged,
    layer: Layer,
    rows: Rows,
    scale: Tensor | None,
    held: int,
    values: Tensor,
    gradients: Gradients | None,
) -> None:
    """Double precision: as on a CPU."""
    level = part.hierarchy.level_of(rows.z)
    for i in range(1, part.top + 1):
        for block in ranges.blocks(part.hierarchy, i, rows, (level == i).nonzero()[:, 0], part.hard):
            fused.add(block, layer, rows, scale, held, values, gradients)
