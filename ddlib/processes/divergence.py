"""The closed form of the bound for hierarchies: a KL over the children of the noisy state, and those below it."""

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.typing import PerToken, Tokens


def children(
    hierarchy: Hierarchy,
    log_px: PerToken,
    log_finest: Float[Tensor, "B L children"],
    x: Tokens,
    z: Tokens,
    shares: Float[Tensor, "B L n"] | None = None,
) -> PerToken:
    r"""KL(pi(.|z, x) || pi(.|z, p)) in nats, where pi is the law of the child of ``z`` one level finer; 0 at words.

    With z in level i, :math:`\pi(y|z,x) = K_{i-1}(z|y) u_{i-1}(y|x) / u_i(z|x)`. The map cancels in the
    logarithm, so it is :math:`R_{i-1} - R_i` with

    .. math:: R_j(z) = E_{y \sim P(\cdot|z,x)} \log \frac{u_j(y|x)}{u_j(y|p)}, \qquad y \in L_j,

    the mean over the states of level j on the way from x to z (theory section 2). For j < i :math:`R_{j-1} - R_j` is
    the mean of the same KL at the states of level j that may be below z.

    Args:
        hierarchy: where tokens jump.
        log_px: (B, L) log p(x).
        log_finest: (B, L, clusters of level 1) log u_1(.|p). All that the network says enters by these two.
        x: (B, L) clean words.
        z: (B, L) noisy states.
        shares: (B, L, n) by what the KL of each edge counts, those above z not at all; default the edge below z alone.
    """
    level, result, laws = hierarchy.level_of(z), torch.zeros_like(log_px), [log_finest]
    for i, edge in enumerate(hierarchy.maps, start=1):
        if i > 1:
            laws.append(edge.log_push(laws[-1]))
        here = hierarchy.local(z, i)
        u_z = hierarchy.between(0, i).entry(x, here)
        known = torch.where(u_z > 0, u_z, 1.0).log().to(log_px.dtype)  # u_z is 0 only where z is not of this level
        above, total = known - laws[-1].gather(-1, here[..., None]).squeeze(-1), torch.zeros_like(log_px)
        for j in range(i, 0 if shares is not None else i - 1, -1):
            below = -log_px if j == 1 else _on_the_way(hierarchy, i, j - 1, laws[j - 2], x, here, u_z)
            kl = (below - above).clamp_min(0)  # rounding
            total = kl if shares is None else total + shares[..., j - 1].to(kl.dtype) * kl
            above = below
        result = torch.where(level == i, total, result)
    return result


def _on_the_way(hierarchy: Hierarchy, i: int, j: int, law: Tensor, x: Tokens, here: Tokens, u_z: Tensor) -> Tensor:
    """R_j at states ``here`` of level i > j > 0, where ``law`` is log u_j(.|p)."""
    lower = hierarchy.between(0, j)
    if lower.spread is None:
        return -law.gather(-1, lower.parents[x][..., None]).squeeze(-1)
    given = lower.row(x)
    chance = hierarchy.between(j, i).column(here) * given / torch.where(u_z > 0, u_z, 1.0)[..., None]
    return (chance.to(law.dtype) * (given.log().to(law.dtype) - law)).sum(-1)
