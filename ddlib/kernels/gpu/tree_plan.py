"""Part of a plan for all rows in the plain levels of a hierarchy."""

from dataclasses import dataclass

from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.kernels import fused
from ddlib.kernels.fused import Block, Gradients, Layer, LossPart, Work
from ddlib.kernels.gpu.forward_kernel import divergences
from ddlib.kernels.gpu.inplace_softmax import InPlace
from ddlib.kernels.gpu.vocab_order import ALIGNED, Order, Segment


@dataclass(frozen=True)
class Ranged(LossPart):
    """Rows in levels 1 to ``top``, below which all maps are plain.

    Without gradients one kernel computes everything, without synchronising the host. With gradients
    the host waits once, for the number of rows in each state; then the rows of one or several
    states share cuBLAS products, in chunks.
    """

    hierarchy: Hierarchy
    top: int
    hard: bool


@fused.add.register
def _add_ranged(part: Ranged, work: Work) -> None:
    order = Order(part.hierarchy, part.top, part.hard)
    level = order.level(work.rows)
    spans = order.of(work.rows, level)
    index = order.rank(level, spans)
    if work.gradients is None:
        work.values.add_(divergences(*work.layer, order.tokens, spans, index))
    else:
        _train(order, order.segments(work.rows, level), index, work, work.gradients)


def _train(
    order: Order, segments: list[Segment], index: Tensor, work: Work, gradients: Gradients
) -> None:
    """Compute values and gradients segment by segment, on copies of matrix and gradient in tree
    order (V D entries).
    """
    layer = work.layer
    into = gradients
    if not order.identity:
        bias = None if layer.bias is None else layer.bias[order.tokens]
        layer = Layer(layer.hidden, layer.weight[order.tokens], bias)
        into = Gradients.zeros(layer)._replace(hidden=gradients.hidden)
    first = 0
    for segment in segments:
        block = _block(order, segment, index[first : first + segment.tokens])
        fused.add(block, work._replace(layer=layer, gradients=into))
        first += segment.tokens
    if not order.identity:
        gradients.weight.index_add_(0, order.tokens, into.weight)
        if gradients.bias is not None and into.bias is not None:
            gradients.bias.index_add_(0, order.tokens, into.bias)


def _block(order: Order, segment: Segment, index: Tensor) -> Block:
    start = segment.low // ALIGNED * ALIGNED
    stop = -(-segment.high // ALIGNED) * ALIGNED
    return Block(
        index,
        slice(start, stop),
        InPlace(start, order.outer(segment.level), order.spans[:, segment.child]),
    )
