"""The closed forms of the bound for hierarchies: KLs over what is below a noisy state, one level finer or more."""

from collections.abc import Callable, Iterable, Iterator

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
    the mean of the same KL at the states of level j that may be below z: what the law of the states of level j - 1
    under z costs more than that of the states of level j.

    Args:
        hierarchy: where tokens jump.
        log_px: (B, L) log p(x).
        log_finest: (B, L, clusters of level 1) log u_1(.|p). All that the network says enters by these two.
        x: (B, L) clean words.
        z: (B, L) noisy states.
        shares: (B, L, n) by what the KL of each edge counts, those above z not at all; default the edge below z alone.
    """
    level, result = hierarchy.level_of(z), torch.zeros_like(log_px)
    wanted: Callable[[int], Iterable[int]] = range if shares is not None else lambda upper: (upper - 1,)
    for j, kl in enumerate(_over(hierarchy, log_px, log_finest, x, z, wanted), start=1):
        total, above = torch.zeros_like(result), torch.zeros_like(result)
        for i in sorted(kl, reverse=True):
            here = (kl[i] - above).clamp_min(0)  # rounding
            total = here if shares is None else total + shares[..., i].to(here.dtype) * here
            above = kl[i]
        result = torch.where(level == j, total, result)
    return result


def descendants(
    hierarchy: Hierarchy,
    log_px: PerToken,
    log_finest: Float[Tensor, "B L children"],
    x: Tokens,
    z: Tokens,
    chances: Float[Tensor, "B L levels"],
) -> PerToken:
    r"""KL(p(z_s|z_t, x) || p(z_s|z_t, p)) in nats, where levels come down with ``chances`` that no model has a say in.

    With z in level j, :math:`\sum_{i<j} c_i\, KL(\pi_i(.|z, x) || \pi_i(.|z, p))` over the laws :math:`\pi_i(y|z) \sim
    K_{i \to j}(z|y) u_i(y)` of the member of level i under z (theory section 3).

    Args:
        hierarchy: where tokens jump.
        log_px: (B, L) log p(x).
        log_finest: (B, L, clusters of level 1) log u_1(.|p). All that the network says enters by these two.
        x: (B, L) clean words.
        z: (B, L) noisy states.
        chances: (B, L, n + 1) of each level at the earlier time.
    """
    level, result = hierarchy.level_of(z), torch.zeros_like(log_px)
    for j, kl in enumerate(_over(hierarchy, log_px, log_finest, x, z, range), start=1):
        come = sum((chances[..., i] * kl[i].clamp_min(0) for i in range(j)), torch.zeros_like(result))
        result = torch.where(level == j, come, result)
    return result


def _over(
    hierarchy: Hierarchy,
    log_px: PerToken,
    log_finest: Tensor,
    x: Tokens,
    z: Tokens,
    lower: Callable[[int], Iterable[int]],
) -> Iterator[dict[int, Tensor]]:
    """For each level from 1, as if ``z`` were in it: KL(pi_i(.|z, x) || pi_i(.|z, p)) for the levels i = ``lower``(it).

    The map cancels in the logarithm, as in ``children``.
    """
    laws = [log_finest[..., :0], log_finest]
    for j, edge in enumerate(hierarchy.maps, start=1):
        if j > 1:
            laws.append(edge.log_push(laws[-1]))
        here = hierarchy.local(z, j)
        u_z = hierarchy.between(0, j).entry(x, here)
        known = torch.where(u_z > 0, u_z, 1.0).log().to(log_px.dtype)  # u_z is 0 only where z is not of this level
        coarser = laws[j].gather(-1, here[..., None]).squeeze(-1)
        yield {
            i: (-log_px if i == 0 else _members_term(hierarchy, i, j, laws[i], x, here, u_z)) - known + coarser
            for i in lower(j)
        }


def _members_term(hierarchy: Hierarchy, i: int, j: int, law: Tensor, x: Tokens, here: Tokens, u_z: Tensor) -> Tensor:
    """E over pi_i(y|z, x) of log u_i(y|x) - log u_i(y|p), where ``law`` is log u_i(.|p), i > 0, and z in level j."""
    lower = hierarchy.between(0, i)
    if lower.spread is None:
        return -law.gather(-1, lower.parents[x][..., None]).squeeze(-1)
    given = lower.row(x)
    pi = hierarchy.between(i, j).column(here) * given / torch.where(u_z > 0, u_z, 1.0)[..., None]
    return (pi.to(law.dtype) * (given.log().to(law.dtype) - law)).sum(-1)
