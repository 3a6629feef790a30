"""Part of a plan for all rows in the plain levels of a hierarchy."""

from dataclasses import dataclass

from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.kernels import fused
from ddlib.kernels.fused import Block, FlatBatch, Gradients, Layer, LossPart, Work
from ddlib.kernels.gpu.forward_kernel import divergences
from ddlib.kernels.gpu.inplace_softmax import InPlace
from ddlib.kernels.gpu.vocab_order import ALIGNED, Order, Ranking, Segment, order_of


@dataclass(frozen=True)
class Ranged(LossPart):
    """Rows in levels 1 to ``top``, below which all maps are plain.

    Without gradients one kernel computes everything, without synchronising the host. With gradients
    the host waits once, for the number of rows in each state; then the rows of one or several
    states share cuBLAS products, in chunks.
    """

    ranking: Ranking

    @classmethod
    def of(cls, hierarchy: Hierarchy, top: int, hard: bool, rows: FlatBatch) -> "Ranged":
        """Rank the rows of a batch; other arguments as ``Order``."""
        return cls(Ranking(order_of(hierarchy, top, hard), rows))

    def read(self) -> None:
        _ = self.ranking.segments


@fused.add.register
def _add_ranged(part: Ranged, work: Work) -> None:
    ranking = part.ranking
    if work.gradients is None:
        tokens = ranking.order.tokens
        work.values.add_(divergences(*work.layer, tokens, ranking.spans, ranking.index))
    else:
        _train(ranking, work, work.gradients)


def _train(ranking: Ranking, work: Work, gradients: Gradients) -> None:
    """Compute values and gradients segment by segment, on copies of matrix and gradient in tree
    order (V D entries), or on themselves if that is their order.
    """
    order = ranking.order
    layer = work.layer
    into = gradients
    if not order.identity:
        bias = None if layer.bias is None else layer.bias[order.tokens]
        layer = Layer(layer.hidden, layer.weight[order.tokens], bias)
        into = Gradients.zeros(layer)._replace(hidden=gradients.hidden)
    first = 0
    for segment in ranking.segments:
        block = _block(
            order, segment, ranking.index[first : first + segment.tokens], len(layer.weight)
        )
        fused.add(block, work._replace(layer=layer, gradients=into))
        first += segment.tokens
    if not order.identity:
        gradients.weight.index_add_(0, order.tokens, into.weight)
        if gradients.bias is not None and into.bias is not None:
            gradients.bias.index_add_(0, order.tokens, into.bias)


def _block(order: Order, segment: Segment, index: Tensor, rows: int) -> Block:
    start = segment.low // ALIGNED * ALIGNED
    stop = min(-(-segment.high // ALIGNED) * ALIGNED, rows)
    return Block(
        index,
        slice(start, stop),
        InPlace(start, order.outer(segment.level), order.spans[:, segment.child]),
    )
