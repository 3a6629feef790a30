"""Hierarchies with xi < 1: the network's law enters by log p(x) and the masses of the finest clusters alone.

A token's divergence and its derivatives by these few numbers cost nothing; the derivatives by the logits follow in one
pass over them.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.kernels.block import Divergence, Rows
from ddlib.kernels.ranges import to_softmax
from ddlib.processes.divergence import children


class Statistics(Divergence):
    """The KL over the children of z by way of log p(x) and log u_1(.|p)."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy

    def __call__(self, logits: Float[Tensor, "n K"], rows: Rows, derive: bool) -> Float[Tensor, "n"]:
        edge, word = self.hierarchy.maps[0], rows.x[:, None]
        own = logits.gather(1, word)
        # without stray mass a cluster's can be too small for anything but its logarithm
        plain = edge.log_push(logits) if edge.spread is None else None
        total = to_softmax(logits)[:, None]
        log_px = own - total
        log_finest = (edge.push(logits).log() if plain is None else plain - total)[:, None]
        with torch.set_grad_enabled(derive):
            log_px.requires_grad_(derive)
            log_finest.requires_grad_(derive)
            value = children(self.hierarchy, log_px, log_finest, word, rows.z[:, None]).squeeze(1)
            if not derive:
                return value
            by_word, by_cluster = torch.autograd.grad(value.sum(), (log_px, log_finest))
        # u_1 = keep mass + spread, so d log u_1(c) / d log p(v) = keep p(v) / u_1(c) for v in c
        by_cluster, finest = by_cluster.squeeze(1), log_finest.detach().squeeze(1).exp()
        strayed = 0.0 if edge.spread is None else edge.spread.to(finest.dtype) / finest
        slope = (by_cluster * (1 - strayed)).sum(1, keepdim=True) + by_word
        share = edge.keep * (by_cluster / finest)
        logits.mul_(share.index_select(1, edge.parents).sub_(slope))
        logits.scatter_add_(1, word, by_word)
        return value.detach()
