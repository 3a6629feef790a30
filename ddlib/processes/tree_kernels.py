"""Time-independent transition kernels of a hierarchy, upwards and downwards."""

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.hierarchies import Hierarchy
from ddlib.typing import PerToken, StateMatrix, TokenProbs, Tokens
from ddlib.utils.random import Generator, rand


def reach(hierarchy: Hierarchy, x: Tokens, z: Tokens) -> PerToken:
    """Return u(z|x), the probability that z is the token's ancestor in the level of z; elementwise, float64."""
    level, result = hierarchy.level_of(z), (z == x).to(torch.float64)
    for i in range(1, hierarchy.depth + 1):
        result = torch.where(level == i, hierarchy.between(0, i).entry(x, hierarchy.local(z, i)), result)
    return result


def reach_of_tokens(hierarchy: Hierarchy, z: Tokens) -> TokenProbs:
    """Return ``reach`` of every token, (B, L, V)."""
    level = hierarchy.level_of(z)
    result = one_hot(hierarchy.local(z, 0), hierarchy.vocab_size).to(torch.float64)
    for i in range(1, hierarchy.depth + 1):
        column = hierarchy.between(0, i).column(hierarchy.local(z, i))
        result = torch.where((level == i)[..., None], column, result)
    return result


def dense(hierarchy: Hierarchy, levels: Float64[Tensor, "levels levels"]) -> StateMatrix:
    """Build the (S, S) matrix whose block from level i to level j >= i is ``levels[i, j]`` times their map."""
    states = hierarchy.states
    result = torch.zeros(hierarchy.num_states, hierarchy.num_states, dtype=torch.float64, device=levels.device)
    for i in range(hierarchy.depth + 1):
        result[states(i), states(i)] = levels[i, i] * torch.eye(hierarchy.levels[i]).to(levels)
        for j in range(i + 1, hierarchy.depth + 1):
            result[states(i), states(j)] = levels[i, j] * hierarchy.between(i, j).matrix()
    return result


def ascend(hierarchy: Hierarchy, z: Tokens, level: Tokens, generator: Generator = None) -> Tokens:
    """Draw the ancestors of ``z`` at levels that are not below theirs, with one draw per edge."""
    start, result = hierarchy.level_of(z), z
    member = z - hierarchy.starts[start]
    for i, edge in enumerate(hierarchy.maps, start=1):
        ascending, child = start < i, torch.where(start < i, member, 0)
        parent = edge.parents[child] if edge.plain else edge.sample(child, rand(z.shape, generator, z.device))
        member = torch.where(ascending, parent, member)
        result = torch.where(ascending & (level == i), parent + hierarchy.offsets[i], result)
    return result


def descendant_logits(
    hierarchy: Hierarchy, logits: Float[Tensor, "N V"], z: Int64[Tensor, "N"], level: int, target: int, force: bool
) -> Float[Tensor, "N K"]:
    """Log-probabilities of the descendants in ``target`` of ``z`` in ``level``; see ``LevelProcess``."""
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if target > 0:
        ascent = hierarchy.between(0, target)
        log_probs = ascent.log_push(log_probs if ascent.plain else log_probs.log_softmax(-1))
    route, state = hierarchy.between(target, level), hierarchy.local(z, level)
    if route.num_parents == 1:  # every state leads to the root
        return log_probs
    if route.plain:
        return log_probs.masked_fill(route.parents != state[:, None], -torch.inf)
    weight = route.column(state)
    if force:
        weight = torch.where(route.parents == state[:, None], weight, 0.0)
    return log_probs + weight.log().to(log_probs.dtype)


def shared(hierarchy: Hierarchy, z: Tokens) -> Bool[Tensor, "B L"]:
    """True where every token may reach the state: the mask, and clusters that tokens of other clusters may enter."""
    routes = [hierarchy.between(0, i) for i in range(1, hierarchy.depth + 1)]
    by_level = [hierarchy.vocab_size == 1, *(route.mixes for route in routes)]
    return torch.tensor(by_level, device=z.device)[hierarchy.level_of(z)]
