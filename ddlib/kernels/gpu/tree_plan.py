"""Part of a plan for all rows in the plain levels of a hierarchy."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.kernels import fused
from ddlib.kernels.fused import FlatBatch, Gradients, Layer, LossPart, Work, in_chunks
from ddlib.kernels.gpu.forward_kernel import divergences
from ddlib.kernels.gpu.inplace_softmax import overwrite
from ddlib.kernels.gpu.siblings import Grouped, groups_of
from ddlib.kernels.gpu.vocab_order import ALIGNED, Order, Ranking, Segment, order_of


@dataclass(frozen=True)
class Ranged(LossPart):
    """Rows in levels 1 to ``top``, below which all maps are plain.

    Without gradients one kernel computes everything, without synchronising the host. With gradients
    the host waits once, for the number of rows in each state; then the rows of one or several
    states share cuBLAS products, in chunks, and rows in small clusters have grouped products.
    """

    ranking: Ranking

    @classmethod
    def of(cls, hierarchy: Hierarchy, top: int, hard: bool, rows: FlatBatch) -> "Ranged":
        """Rank the rows of a batch; other arguments as ``Order``."""
        return cls(Ranking(order_of(hierarchy, top, hard), rows))

    def read(self) -> None:
        _ = self.clusters

    @cached_property
    def clusters(self) -> list[Grouped]:
        """Part of the rows in level 1 that are in no segment; their loss is a cross-entropy among
        the tokens of a cluster.
        """
        count = self.ranking.products.grouped
        if count == 0:
            return []
        query = self.ranking.query
        return [Grouped(((query.families, groups_of(query, count)),))]


@fused.add.register
def _add_ranged(part: Ranged, work: Work) -> None:
    ranking = part.ranking
    if work.gradients is None:
        tokens = ranking.order.tokens
        work.values.add_(divergences(*work.layer, tokens, ranking.spans, ranking.index))
        return
    for clusters in part.clusters:
        fused.add(clusters, work)
    if ranking.products.segments:
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
    for segment in ranking.products.segments:
        index = ranking.index[first : first + segment.tokens]
        _add_segment(order, segment, index, work._replace(layer=layer, gradients=into))
        first += segment.tokens
    if not order.identity:
        gradients.weight.index_add_(0, order.tokens, into.weight)
        if gradients.bias is not None and into.bias is not None:
            gradients.bias.index_add_(0, order.tokens, into.bias)


def _add_segment(order: Order, segment: Segment, rows: Tensor, work: Work) -> None:
    layer, batch, scale, budget, values, gradients = work
    assert scale is not None and gradients is not None
    start = segment.low // ALIGNED * ALIGNED
    stop = min(-(-segment.high // ALIGNED) * ALIGNED, len(layer.weight))
    columns = slice(start, stop)
    matrix, offset = fused.columns_of(layer.weight, layer.bias, columns)
    spans = start, order.outer(segment.level), order.spans[:, segment.child]
    for index, h, logits in in_chunks(rows, Layer(layer.hidden, matrix, offset), budget):
        factor = scale[index].to(torch.float32)
        outside = None
        if h.dtype == torch.float16:  # too few exponents for slopes times factors
            outside = factor[:, None]
            factor = torch.ones_like(factor)
        values[index] = overwrite(logits, batch.x[index], factor, *spans)
        fused.add_gradients(gradients, index, columns, matrix, logits, h, outside)
