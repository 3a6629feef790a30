"""Hierarchies with xi < 1: the network's law enters by log p(x) and the masses of the finest clusters alone.

A token's divergence and its derivatives by these few numbers cost nothing; the derivatives by the logits follow in one
pass over them.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.kernels.block import Divergence, Rows
from ddlib.processes.divergence import children


class Statistics(Divergence):
    """The KL over the children of z by way of log p(x) and log u_1(.|p)."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy

    def __call__(self, logits: Float[Tensor, "n K"], rows: Rows, derive: bool) -> Float[Tensor, "n"]:
        edge, word = self.hierarchy.maps[0], rows.x[:, None]
        log_p = logits.sub_(logits.logsumexp(1, keepdim=True))
        log_px = log_p.gather(1, word)
        log_finest = edge.log_push(log_p)[:, None]
        with torch.set_grad_enabled(derive):
            log_px.requires_grad_(derive)
            log_finest.requires_grad_(derive)
            value = children(self.hierarchy, log_px, log_finest, word, rows.z[:, None]).squeeze(1)
            if not derive:
                return value
            by_word, by_cluster = torch.autograd.grad(value.sum(), (log_px, log_finest))
        # d log u_1(c) / d log p(v) = keep p(v) / u_1(c) for v in c: the spread is the same for every law
        share = edge.keep * (by_cluster.squeeze(1) / log_finest.detach().squeeze(1).exp())
        p = log_p.exp_()
        mass = p.new_zeros(share.shape).index_add_(1, edge.parents, p)
        total = (share * mass).sum(1, keepdim=True) + by_word
        p.mul_(share.index_select(1, edge.parents).sub_(total))
        p.scatter_add_(1, word, by_word)
        return value.detach()
