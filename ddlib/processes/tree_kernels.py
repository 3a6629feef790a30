"""The ways up and down a hierarchy that no clock has a say in."""

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.hierarchies import Hierarchy
from ddlib.typing import PerToken, StateMatrix, TokenProbs, Tokens
from ddlib.utils.random import Generator, rand


def reach(hierarchy: Hierarchy, x: Tokens, z: Tokens) -> PerToken:
    """u(z|x), the probability that the word's way up leads through z, given z's level; elementwise, float64."""
    level, result = hierarchy.level_of(z), (z == x).to(torch.float64)
    for i in range(1, hierarchy.depth + 1):
        result = torch.where(level == i, hierarchy.between(0, i).entry(x, hierarchy.local(z, i)), result)
    return result


def reach_of_tokens(hierarchy: Hierarchy, z: Tokens) -> TokenProbs:
    """``reach`` of every word, (B, L, V)."""
    level = hierarchy.level_of(z)
    result = one_hot(hierarchy.local(z, 0), hierarchy.vocab_size).to(torch.float64)
    for i in range(1, hierarchy.depth + 1):
        column = hierarchy.between(0, i).column(hierarchy.local(z, i))
        result = torch.where((level == i)[..., None], column, result)
    return result


def dense(hierarchy: Hierarchy, levels: Float64[Tensor, "levels levels"]) -> StateMatrix:
    """The (S, S) matrix whose block from level i to level j >= i is ``levels[i, j]`` times the map between them."""
    states = hierarchy.states
    result = torch.zeros(hierarchy.num_states, hierarchy.num_states, dtype=torch.float64, device=levels.device)
    for i in range(hierarchy.depth + 1):
        result[states(i), states(i)] = levels[i, i] * torch.eye(hierarchy.levels[i]).to(levels)
        for j in range(i + 1, hierarchy.depth + 1):
            result[states(i), states(j)] = levels[i, j] * hierarchy.between(i, j).matrix()
    return result


def ascend(hierarchy: Hierarchy, z: Tokens, level: Tokens, generator: Generator = None) -> Tokens:
    """The states that ``z`` reach at levels not below theirs: edge by edge, each edge by its own draw."""
    now, result = hierarchy.level_of(z), z
    member = z - hierarchy.starts[now]
    for i, edge in enumerate(hierarchy.maps, start=1):
        climbing, child = now < i, torch.where(now < i, member, 0)
        plain = edge.spread is None
        parent = edge.parents[child] if plain else edge.sample(child, rand(z.shape, generator, z.device))
        member = torch.where(climbing, parent, member)
        result = torch.where(climbing & (level == i), parent + hierarchy.offsets[i], result)
    return result


def descendant_logits(
    hierarchy: Hierarchy, logits: Float[Tensor, "N V"], z: Int64[Tensor, "N"], level: int, target: int, force: bool
) -> Float[Tensor, "N K"]:
    """The log-law of the members of ``target`` that led to ``z`` in ``level``; see ``Sampled.descendant_logits``."""
    law = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if target > 0:
        up = hierarchy.between(0, target)
        law = up.log_push(law if up.spread is None else law.log_softmax(-1))
    route, state = hierarchy.between(target, level), hierarchy.local(z, level)
    if route.num_parents == 1:  # everybody leads there
        return law
    if route.spread is None:
        return law.masked_fill(route.parents != state[:, None], -torch.inf)
    weight = route.column(state)
    if force:
        weight = torch.where(route.parents == state[:, None], weight, 0.0)
    return law + weight.log().to(law.dtype)


def shared(hierarchy: Hierarchy, z: Tokens) -> Bool[Tensor, "B L"]:
    """Whether every word may climb to the state: the mask, and clusters that tokens of other clusters may stray to."""
    routes = [hierarchy.between(0, i) for i in range(1, hierarchy.depth + 1)]
    known = [hierarchy.vocab_size == 1, *(route.num_parents == 1 or route.spread is not None for route in routes)]
    return torch.tensor(known, device=z.device)[hierarchy.level_of(z)]
