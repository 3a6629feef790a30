"""Estimators along orders of positions: chains, several of them, and what looks like chains."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

import ddlib as dd
from recipes.estimators.base import Estimator, Model, SequenceEstimate

Reading = Callable[[Model, Int64[Tensor, "B L"], Bool[Tensor, "B L"]], SequenceEstimate]


@dataclass(frozen=True, kw_only=True)
class AlongOrders(Estimator):
    """Function of the sequence without chance: every draw equals the expectation."""

    random = False
    reading: Reading

    @torch.no_grad()
    def draw(
        self,
        model: Model,
        x: Int64[Tensor, "B L"],
        free: Bool[Tensor, "B L"],
        generator: dd.KeyedGenerator,
    ) -> SequenceEstimate:
        return self.reading(model, x, free)

    @torch.no_grad()
    def expectation(self, model: Model, x: Int64[Tensor, "B L"]) -> Float64[Tensor, "B"]:
        return self.reading(model, x, torch.ones_like(x, dtype=torch.bool)).nats


class Permuted(dd.paces.RandomOrder):
    """Positions in a fixed order: 0 left to right, 1 right to left, others drawn by number.

    Args:
        number: number of the order.
    """

    random = False

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def turns(self, chance: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        length = chance.shape[1]
        forwards = torch.arange(length)
        shuffled = torch.randperm(length, generator=torch.Generator().manual_seed(self.number))
        ranks = forwards if self.number == 0 else forwards.flip(0) if self.number == 1 else shuffled
        return ranks.to(chance).expand_as(chance)


def chain(
    order: dd.samplers.Sampler,
    group: int | None,
    model: Model,
    x: Int64[Tensor, "B L"],
    free: Bool[Tensor, "B L"],
) -> SequenceEstimate:
    """Return the exact likelihood along an order whose choice reads z alone (theory section 10).

    Args:
        order: the order.
        group: positions drawn at once, at most those of a sequence or block; None for one.
        model: process and network.
        x: (B, L) tokens.
        free: (B, L), False at given tokens.
    """
    blocks = model.pace.block
    size = None if group is None else min(group, blocks or x.shape[1])
    estimate = dd.likelihood(
        model.process,
        model.network,
        x,
        order,
        group=size,
        given=~free,
        parameterization=model.parameterization,
        pace=None if blocks is None else model.pace,
    )
    return SequenceEstimate(-estimate.log_likelihood, estimate.calls)


def several(
    count: int,
    combine: Callable[[Float64[Tensor, "k B"]], Tensor],
    model: Model,
    x: Int64[Tensor, "B L"],
    free: Bool[Tensor, "B L"],
) -> SequenceEstimate:
    """Combine the chains of ``count`` fixed orders."""
    orders = [dd.samplers.InOrder(Permuted(number)) for number in range(count)]
    draws = [chain(order, None, model, x, free) for order in orders]
    nats = torch.stack([one.nats for one in draws])
    return SequenceEstimate(combine(nats), sum(one.calls for one in draws))


def along(order: dd.samplers.Sampler, group: int | None = None) -> Reading:
    """Return ``chain`` along an order."""
    return partial(chain, order, group)


def among(count: int, combine: Callable[[Float64[Tensor, "k B"]], Tensor]) -> Reading:
    """Return ``several`` of fixed orders."""
    return partial(several, count, combine)


def true_token_first(
    model: Model, x: Int64[Tensor, "B L"], free: Bool[Tensor, "B L"]
) -> SequenceEstimate:
    """Return the sum along the order that takes the position whose *true* child is likeliest.

    The choice depends on the tokens that are still hidden, so the product of the conditionals is no
    distribution (theory section 24).
    """
    process = model.process
    top = len(process.levels) - 1
    tokens = torch.arange(process.vocab_size, device=x.device)[None]
    ancestors = torch.cat(
        [process.ascend(tokens, torch.full_like(tokens, level)) for level in range(top + 1)]
    )
    level = torch.where(free, top, 0)
    nats = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    calls = int(level.sum(-1).max())
    for _ in range(calls):
        z = ancestors[level, x]
        log_p = model.logits(z, _times(model, level, top, free)).double().log_softmax(-1)
        below = (level - 1).clamp_min(0)
        masses = [_mass(log_p, ancestors, where, x) for where in (below, level)]
        gain = torch.where(level > 0, masses[0] - masses[1], -torch.inf)
        best = gain.argmax(-1, keepdim=True)
        moving = level.gather(1, best) > 0
        nats -= torch.where(moving, gain.gather(1, best), 0.0)[:, 0]
        level = level.scatter_add(1, best, -moving.to(level.dtype))
    return SequenceEstimate(nats, calls)


def _mass(log_p: Tensor, ancestors: Tensor, level: Tensor, x: Tensor) -> Tensor:
    """Return the log-probability of the token's ancestor in a level, (B, L)."""
    members = ancestors[level] == ancestors[level, x][..., None]
    return torch.where(members, log_p, -torch.inf).logsumexp(-1)


def coupled_pairs(
    model: Model, x: Int64[Tensor, "B L"], free: Bool[Tensor, "B L"]
) -> SequenceEstimate:
    r"""Return the sum over pairs of positions, left to right, of an unnormalised distribution.

    .. math:: -\sum_k \sum_{l \in A_k} \log p(x_l | z, x_{A_k \setminus l})

    Each position of a set is read given the other one: a coupling within a step, of the kind that
    EDLM (arXiv 2410.21357) has by an energy. The product over a set sums to one over its tokens
    only after division by a normaliser, which is left out here.
    """
    length = x.shape[1]
    position = torch.arange(length, device=x.device)
    mask = model.process.num_states - 1
    nats = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for column in range(length):
        known = (position // 2 <= column // 2) & (position != column)
        shown = known | ~free
        z = torch.where(shown, x, mask)
        log_p = model.logits(z, _times(model, (~shown).long(), 1, free)).double().log_softmax(-1)
        term = log_p[:, column].gather(-1, x[:, column, None])[:, 0]
        nats -= torch.where(free[:, column], term, 0.0)
    return SequenceEstimate(nats, length)


def _times(model: Model, level: Tensor, top: int, free: Tensor) -> Tensor:
    """Return the share of edges that remain as times; per position along blocks."""
    if model.pace.block is None:
        return level.sum(-1).double() / (top * free.sum(-1)).clamp_min(1)
    blocks = level.double().unflatten(1, (-1, model.pace.block))
    return (blocks.mean(-1, keepdim=True) / top).expand_as(blocks).flatten(1)


def best(nats: Float64[Tensor, "k B"]) -> Tensor:
    """Return the smallest of k chains; their probabilities are those of different models."""
    return nats.amin(0)


def best_and_its_number(nats: Float64[Tensor, "k B"]) -> Tensor:
    """Return the smallest of k chains and log k, the nats of its number."""
    return nats.amin(0) + torch.log(torch.tensor(float(len(nats)), dtype=torch.float64))


def mixture(nats: Float64[Tensor, "k B"]) -> Tensor:
    """Return minus the log of the mean probability under k chains."""
    return torch.log(torch.tensor(float(len(nats)), dtype=torch.float64)) - (-nats).logsumexp(0)
