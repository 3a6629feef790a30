"""Hierarchies with xi < 1, or with losses on all edges: log p(x) and the masses of the finest clusters are all.

A token's divergence and its derivatives by these few numbers cost nothing; the derivatives by the logits follow in one
pass over them.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.hierarchies import Hierarchy, Map
from ddlib.kernels.subset_logsumexp import to_softmax
from ddlib.kernels.tile import Divergence, Rows
from ddlib.processes.hierarchical_kl import children

Derive = Callable[[Tensor, Tensor], None]
"""Given d / d log p(x), (n, 1), and d / d log u_1, (n, clusters), leaves in the logits their derivatives, but for what
log p(x) adds at x itself."""


class Statistics(Divergence):
    """The KL over the children of z by way of log p(x) and log u_1(.|p).

    Args:
        hierarchy: of the process.
        shares: by what each edge below a token's state counts, (n, edges); default the edge below it alone.
    """

    def __init__(self, hierarchy: Hierarchy, shares: Callable[[Rows], Tensor] | None = None) -> None:
        self.hierarchy, self.shares = hierarchy, shares

    def __call__(self, logits: Float[Tensor, "n K"], rows: Rows, derive: bool) -> Float[Tensor, "n"]:
        edge, word = self.hierarchy.maps[0], rows.x[:, None]
        log_px, log_finest, to_logits = (
            _plain(edge, logits, word, derive) if edge.spread is None else _perturbed(edge, edge.spread, logits, word)
        )
        shares = None if self.shares is None else self.shares(rows)[:, None]
        with torch.set_grad_enabled(derive):
            log_px.requires_grad_(derive)
            log_finest = log_finest[:, None].requires_grad_(derive)
            value = children(self.hierarchy, log_px, log_finest, word, rows.z[:, None], shares).squeeze(1)
            if not derive:
                return value
            by_token, by_cluster = torch.autograd.grad(value.sum(), (log_px, log_finest))
        to_logits(by_token, by_cluster.squeeze(1))
        logits.scatter_add_(1, word, by_token)
        return value.detach()


def _perturbed(edge: Map, spread: Tensor, logits: Tensor, word: Tensor) -> tuple[Tensor, Tensor, Derive]:
    """log p(x), log u_1 and what follows from their derivatives; ``logits`` become probabilities."""
    own = logits.gather(1, word)
    log_px = own - to_softmax(logits)[:, None]
    finest = edge.push(logits)

    def to_logits(by_token: Tensor, by_cluster: Tensor) -> None:
        # u_1 = keep mass + spread, so d log u_1(c) / d log p(v) = keep p(v) / u_1(c) for v in c
        total = (by_cluster * (1 - spread.to(finest.dtype) / finest)).sum(1, keepdim=True) + by_token
        share = edge.keep * (by_cluster / finest)
        logits.mul_(share.index_select(1, edge.parents).sub_(total))

    return log_px, finest.log(), to_logits


def _plain(edge: Map, logits: Tensor, word: Tensor, derive: bool) -> tuple[Tensor, Tensor, Derive]:
    """The same where only maps further up are perturbed: the mass of a cluster may be too small but for its log."""
    own = logits.gather(1, word)
    # a map to one cluster takes any distribution's mass for 1, but these are not normalised
    mass = edge.log_push(logits) if edge.num_parents > 1 else logits.logsumexp(1, keepdim=True)
    lowest = torch.finfo(mass.dtype).min  # of a cluster in which all tokens are impossible
    within = (logits - mass.clamp_min(lowest).index_select(1, edge.parents)).exp_() if derive else logits
    total = to_softmax(logits)[:, None]

    def to_logits(by_token: Tensor, by_cluster: Tensor) -> None:
        # d log u_1(c) / d log p(v) = p(v) / u_1(c) for v in c
        logits.mul_(-(by_cluster.sum(1, keepdim=True) + by_token))
        logits.add_(within.mul_(by_cluster.index_select(1, edge.parents)))

    return own - total, mass - total, to_logits
