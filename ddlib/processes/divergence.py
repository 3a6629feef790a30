"""The closed form of the bound for hierarchies: a KL over the children of the noisy state."""

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.typing import PerToken, Tokens


def children(
    hierarchy: Hierarchy, log_px: PerToken, log_finest: Float[Tensor, "B L children"], x: Tokens, z: Tokens
) -> PerToken:
    r"""KL(pi(.|z, x) || pi(.|z, p)) in nats, where pi is the law of the child of ``z`` one level finer; 0 at words.

    With z in level i, :math:`\pi(y|z,x) = K_{i-1}(z|y) u_{i-1}(y|x) / u_i(z|x)`. The map cancels in the logarithm:
    :math:`E_{\pi(y|z,x)} \log\frac{u_{i-1}(y|x)}{u_{i-1}(y|p)} - \log\frac{u_i(z|x)}{u_i(z|p)}` (theory section 2).

    Args:
        hierarchy: where tokens jump.
        log_px: (B, L) log p(x).
        log_finest: (B, L, clusters of level 1) log u_1(.|p). All that the network says enters by these two.
        x: (B, L) clean words.
        z: (B, L) noisy states.
    """
    level, result = hierarchy.level_of(z), torch.zeros_like(log_px)
    finer = coarser = log_finest
    for i, edge in enumerate(hierarchy.maps, start=1):
        if i > 1:
            finer, coarser = coarser, edge.log_push(coarser)
        here = hierarchy.local(z, i)
        u_z = hierarchy.between(0, i).entry(x, here)
        below = -log_px if i == 1 else _children_term(hierarchy, i, finer, x, here, u_z)
        known = torch.where(u_z > 0, u_z, 1.0).log().to(log_px.dtype)  # u_z is 0 only where z is not of this level
        kl = below - known + coarser.gather(-1, here[..., None]).squeeze(-1)
        result = torch.where(level == i, kl, result)
    return result.clamp_min(0)  # rounding


def _children_term(hierarchy: Hierarchy, i: int, finer: Tensor, x: Tokens, here: Tokens, u_z: Tensor) -> Tensor:
    """E over pi(y|z, x) of log u_{i-1}(y|x) - log u_{i-1}(y|p), where ``finer`` is log u_{i-1}(.|p), i > 1."""
    lower = hierarchy.between(0, i - 1)
    if lower.spread is None:
        return -finer.gather(-1, lower.parents[x][..., None]).squeeze(-1)
    given = lower.row(x)
    pi = hierarchy.maps[i - 1].column(here) * given / torch.where(u_z > 0, u_z, 1.0)[..., None]
    return (pi.to(finer.dtype) * (given.log().to(finer.dtype) - finer)).sum(-1)
