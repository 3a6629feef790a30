"""Closed forms of the bound for hierarchies: KLs over the children, or the descendants, of a noisy
state.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.typing import Logits, PerToken, Tokens


def children(
    hierarchy: Hierarchy,
    log_px: PerToken,
    log_finest: Float[Tensor, "B L children"],
    x: Tokens,
    z: Tokens,
    shares: Float[Tensor, "B L n"] | None = None,
) -> PerToken:
    r"""KL(pi(.|z, x) || pi(.|z, p)) in nats, with pi the distribution over the children of ``z``.

    0 at tokens.

    With z in level i, :math:`\pi(y|z,x) = K_{i-1}(z|y) u_{i-1}(y|x) / u_i(z|x)`. The map cancels in
    the logarithm, so it is :math:`R_{i-1} - R_i` with

    .. math:: R_j(z) = E_{y \sim P(\cdot|z,x)} \log \frac{u_j(y|x)}{u_j(y|p)}, \qquad y \in L_j,

    the mean over the states of level j on the path from x to z (theory section 2). For j < i
    :math:`R_{j-1} - R_j` is the mean of the same KL at the states of level j that may be below z:
    the KL of the states of level j - 1 under z minus the KL of the states of level j.

    Args:
        hierarchy: the levels, and the transition matrices between them.
        log_px: (B, L) log p(x).
        log_finest: (B, L, clusters of level 1) log u_1(.|p). These two are all terms of the
            network.
        x: (B, L) clean tokens.
        z: (B, L) noisy states.
        shares: (B, L, n) factors of the KL of each edge, 0 above z; by default the edge below z
            alone counts.
    """
    level = hierarchy.level_of(z)
    result = torch.zeros_like(log_px)
    for j, kl in enumerate(_over(hierarchy, log_px, log_finest, x, z, _below(shares)), start=1):
        result = torch.where(level == j, _sum_over_edges(kl, shares), result)
    return result


def descendants(
    hierarchy: Hierarchy,
    log_px: PerToken,
    log_finest: Float[Tensor, "B L children"],
    x: Tokens,
    z: Tokens,
    chances: Float[Tensor, "B L levels"],
) -> PerToken:
    r"""KL(p(z_s|z_t, x) || p(z_s|z_t, p)) in nats, for level probabilities ``chances`` that depend
    on no model.

    With z in level j it is :math:`\sum_{i<j} c_i\, KL(\pi_i(.|z, x) || \pi_i(.|z, p))`, with the
    distributions :math:`\pi_i(y|z) \sim K_{i \to j}(z|y) u_i(y)` of the descendant of z in level i
    (theory section 3).

    Args:
        hierarchy: the levels, and the transition matrices between them.
        log_px: (B, L) log p(x).
        log_finest: (B, L, clusters of level 1) log u_1(.|p). These two are all terms of the
            network.
        x: (B, L) clean tokens.
        z: (B, L) noisy states.
        chances: (B, L, n + 1) probability c_i of each level at the earlier time.
    """
    level = hierarchy.level_of(z)
    result = torch.zeros_like(log_px)
    for j, kl in enumerate(_over(hierarchy, log_px, log_finest, x, z, range), start=1):
        result = torch.where(level == j, _mean_over_levels(kl, chances), result)
    return result


def children_at(
    hierarchy: Hierarchy,
    logits: Logits,
    x: Tokens,
    z: Tokens,
    shares: Float[Tensor, "B L n"] | None = None,
) -> PerToken:
    """Compute ``children`` from logits, with the distributions of each position up to the level of
    its state only.

    Positions are sorted by level. That takes one synchronisation with an accelerator, and breaks a
    graph of ``torch.compile``.
    """
    return _by_level(hierarchy, logits, x, z, _below(shares), _sum_over_edges, shares)


def descendants_at(
    hierarchy: Hierarchy, logits: Logits, x: Tokens, z: Tokens, chances: Float[Tensor, "B L levels"]
) -> PerToken:
    """Compute ``descendants`` from logits, as ``children_at``."""
    return _by_level(hierarchy, logits, x, z, range, _mean_over_levels, chances)


def _below(shares: Tensor | None) -> Callable[[int], Iterable[int]]:
    """Return which lower levels count for a state of each level: all if edges have shares, else the
    next one.
    """
    return range if shares is not None else lambda level: (level - 1,)


def _sum_over_edges(kl: dict[int, Tensor], shares: Tensor | None) -> Tensor:
    total = above = torch.zeros_like(next(iter(kl.values())))
    for i in sorted(kl, reverse=True):
        edge = (kl[i] - above).clamp_min(0)  # rounding
        total = edge if shares is None else total + shares[..., i].to(edge.dtype) * edge
        above = kl[i]
    return total


def _mean_over_levels(kl: dict[int, Tensor], chances: Tensor) -> Tensor:
    return sum(
        (chances[..., i] * kl[i].clamp_min(0) for i in range(len(kl))), torch.zeros_like(kl[0])
    )


def _by_level(
    hierarchy: Hierarchy,
    logits: Logits,
    x: Tokens,
    z: Tokens,
    lower: Callable[[int], Iterable[int]],
    combine: Callable[[dict[int, Tensor], Any], Tensor],
    factors: Tensor | None,
) -> PerToken:
    """Return ``combine(kl, factors)`` of the positions of each level, with the KLs of the levels
    ``lower(j)``.
    """
    level = hierarchy.level_of(z).flatten()
    counts = (level[:, None] == torch.arange(hierarchy.depth + 1, device=z.device)).sum(0).tolist()
    noisy = level.argsort(stable=True)[counts[0] :]
    log_p = logits.flatten(0, -2).index_select(0, noisy).log_softmax(-1)
    terms = [log_p[:0].sum(-1)]  # a gradient of 0, not none, if all states are tokens
    for j, (here, log_probs) in enumerate(
        zip(noisy.split(counts[1:]), log_p.split(counts[1:]), strict=True), start=1
    ):
        if counts[j] == 0:
            continue
        token = x.flatten()[here]
        local = hierarchy.local(z.flatten()[here], j)
        log_px = log_probs.gather(-1, token[..., None]).squeeze(-1)
        each = [log_probs]
        for edge in hierarchy.maps[: j - 1]:
            each.append(edge.log_push(each[-1]))
        kl = _kl(
            hierarchy,
            j,
            lower(j),
            log_px,
            each,
            hierarchy.maps[j - 1].log_mass(each[-1], local),
            token,
            local,
        )
        terms.append(combine(kl, None if factors is None else factors.flatten(0, -2)[here]))
    joined = torch.cat(terms)
    return joined.new_zeros(level.shape).index_put((noisy,), joined).view(z.shape)


def _over(
    hierarchy: Hierarchy,
    log_px: PerToken,
    log_finest: Tensor,
    x: Tokens,
    z: Tokens,
    lower: Callable[[int], Iterable[int]],
) -> Iterator[dict[int, Tensor]]:
    """Yield KL(pi_i(.|z, x) || pi_i(.|z, p)) for i in ``lower(j)``, for each level j from 1, as if
    z were in level j.

    The map cancels in the logarithm, as in ``children``.
    """
    log_probs = [log_finest[..., :0], log_finest]
    for j, edge in enumerate(hierarchy.maps, start=1):
        if j > 1:
            log_probs.append(edge.log_push(log_probs[-1]))
        local = hierarchy.local(z, j)
        log_uz_p = log_probs[j].gather(-1, local[..., None]).squeeze(-1)
        yield _kl(hierarchy, j, lower(j), log_px, log_probs, log_uz_p, x, local)


def _kl(
    hierarchy: Hierarchy,
    j: int,
    lower: Iterable[int],
    log_px: Tensor,
    log_probs: Sequence[Tensor],
    log_uz_p: Tensor,
    x: Tensor,
    local: Tensor,
) -> dict[int, Tensor]:
    """Return the KL of each of the levels ``lower`` for states of level j, from log u_i(.|p) and
    log u_j(z|p).
    """
    kernel = hierarchy.between(0, j)
    # an ancestor in a tree is the only one of its level
    u_z = log_px.new_ones((), dtype=torch.float64) if kernel.plain else kernel.entry(x, local)
    log_u_z = (
        torch.where(u_z > 0, u_z, 1.0).log().to(log_px.dtype)
    )  # u_z is 0 only where z is not of this level
    return {
        i: (-log_px if i == 0 else _members_term(hierarchy, i, j, log_probs[i], x, local, u_z))
        - log_u_z
        + log_uz_p
        for i in lower
    }


def _members_term(
    hierarchy: Hierarchy, i: int, j: int, log_probs: Tensor, x: Tensor, local: Tensor, u_z: Tensor
) -> Tensor:
    """Mean over pi_i(y|z, x) of log u_i(y|x) - log u_i(y|p).

    ``log_probs`` is log u_i(.|p), i > 0, z in level j.
    """
    lower = hierarchy.between(0, i)
    if lower.plain:
        return -log_probs.gather(-1, lower.parents[x][..., None]).squeeze(-1)
    family, part, column, log_probs = lower.at_parents(
        x, hierarchy.between(i, j).column(local), log_probs
    )
    pi = column * part / torch.where(u_z > 0, u_z, 1.0)[..., None]
    ratio = torch.where(
        pi > 0, family.log().to(log_probs.dtype) - log_probs, 0.0
    )  # other members have no part
    return (pi.to(log_probs.dtype) * ratio).sum(-1)
