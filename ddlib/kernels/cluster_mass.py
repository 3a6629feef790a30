"""Hierarchies with xi < 1, or with losses on all edges: divergence from log p(x) and the masses of
the finest clusters.

The divergence of a row and its derivatives with respect to these few numbers are cheap; the
derivatives with respect to the logits follow in one pass over the logits.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.hierarchies import Hierarchy, Map
from ddlib.kernels.fused import Divergence, FlatBatch, Reader
from ddlib.kernels.subset_logsumexp import to_softmax
from ddlib.processes.hierarchical_kl import children

Derive = Callable[[Tensor, Tensor], None]
"""Backward function that takes d / d log p(x), (n, 1), and d / d log u_1, (n, clusters).

It overwrites the logits by their derivatives, except for the contribution of log p(x) at x
itself."""


class Statistics(Divergence):
    """KL divergence over the children of z, computed from log p(x) and log u_1(.|p).

    Args:
        hierarchy: the hierarchy of the process.
        shares: returns the weight of each edge below the state of each row, (n, edges); default
            only the edge directly below.
    """

    def __init__(
        self, hierarchy: Hierarchy, shares: Callable[[FlatBatch], Tensor] | None = None
    ) -> None:
        self.hierarchy = hierarchy
        self.shares = shares

    def __call__(
        self,
        logits: Float[Tensor, "n K"],
        rows: FlatBatch,
        derive: bool,
        read: Reader | None = None,
    ) -> Float[Tensor, "n"]:
        edge = self.hierarchy.maps[0]
        token = rows.x[:, None]
        assert isinstance(edge, Map)  # see ``dispatch``
        if edge.spread is None:
            log_px, log_finest, to_logits = _without_spread(edge, logits, token, derive, read)
        else:
            log_px, log_finest, to_logits = _with_spread(edge, edge.spread, logits, token, read)
        shares = None if self.shares is None else self.shares(rows)[:, None]
        with torch.set_grad_enabled(derive):
            log_px.requires_grad_(derive)
            log_finest = log_finest[:, None].requires_grad_(derive)
            value = children(
                self.hierarchy, log_px, log_finest, token, rows.z[:, None], shares
            ).squeeze(1)
            if not derive:
                return value
            by_token, by_cluster = torch.autograd.grad(value.sum(), (log_px, log_finest))
        to_logits(by_token, by_cluster.squeeze(1))
        logits.scatter_add_(1, token, by_token)
        return value.detach()


def _with_spread(
    edge: Map, spread: Tensor, logits: Tensor, token: Tensor, read: Reader | None
) -> tuple[Tensor, Tensor, Derive]:
    """Return log p(x), log u_1 and their backward function; ``logits`` become probabilities."""
    log_px = logits.gather(1, token)
    log_px = log_px - to_softmax(logits, read)[:, None]
    finest = edge.push(logits)

    def to_logits(by_token: Tensor, by_cluster: Tensor) -> None:
        # u_1 = keep mass + spread, so d log u_1(c) / d log p(v) = keep p(v) / u_1(c) for v in c
        total = (by_cluster * (1 - spread.to(finest.dtype) / finest)).sum(
            1, keepdim=True
        ) + by_token
        share = edge.keep * (by_cluster / finest)
        logits.mul_(share.index_select(1, edge.parents).sub_(total))

    return log_px, finest.log(), to_logits


def _without_spread(
    edge: Map, logits: Tensor, token: Tensor, derive: bool, read: Reader | None
) -> tuple[Tensor, Tensor, Derive]:
    """As ``_with_spread`` if only higher edges have xi < 1.

    In log space, since a cluster's mass may underflow.
    """
    target = logits.gather(1, token)
    # log_push to a single cluster assumes normalised input, but these logits are not normalised
    mass = edge.log_push(logits) if edge.num_parents > 1 else logits.logsumexp(1, keepdim=True)
    lowest = torch.finfo(mass.dtype).min  # for clusters in which all tokens are impossible
    within = (
        (logits - mass.clamp_min(lowest).index_select(1, edge.parents)).exp_() if derive else logits
    )
    total = to_softmax(logits, read)[:, None]

    def to_logits(by_token: Tensor, by_cluster: Tensor) -> None:
        # d log u_1(c) / d log p(v) = p(v) / u_1(c) for v in c
        logits.mul_(-(by_cluster.sum(1, keepdim=True) + by_token))
        logits.add_(within.mul_(by_cluster.index_select(1, edge.parents)))

    return target - total, mass - total, to_logits
