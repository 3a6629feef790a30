"""A hierarchy whose words can be wrong."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.hierarchies import Flat, Tree
from ddlib.processes.base import beside, elapsed, interior, into, scalar, span, taken
from ddlib.processes.mixture import falls_short, log1p_exp
from ddlib.processes.resampling_chain import LevelProbs
from ddlib.processes.resampling_process import ResamplingProcess
from ddlib.processes.tree_kernels import dense, reach, reach_of_tokens
from ddlib.schedules import Cosine, Linear
from ddlib.typing import Logits, PerToken, StateMatrix, StateProbs, Times, TokenProbs, Tokens
from ddlib.utils.repr import digest


class Noisy(ResamplingProcess):
    r"""Tokens climb a hierarchy, and on their way are redrawn: words by other words, clusters by other clusters.

    In level i a token climbs at :math:`s_i` and is redrawn at :math:`\lambda_i` times the rate of the clock, from the
    law :math:`\pi_i` of the level: that of a uniform or of a frequent word, pushed up by the maps. A redraw forgets the
    word and commutes with the maps, so a token is a level and a flag, kept or redrawn (theory section 13). With
    :math:`k_i(t)` and :math:`r_i(t)` the probabilities of level i, kept and redrawn,

    .. math:: q_t(z|x) = k_i(t) u_i(z|x) + r_i(t) \pi_i(z), \qquad z \in L_i.

    Without redraws it is ``Hierarchical``; without clusters it is masks and uniform noise at a fixed ratio of rates.
    Levels move on their own, but which of them a token comes from depends on whether it was redrawn, and so, in
    reverse, on the network.

    Args:
        hierarchy: where tokens climb.
        schedule: when; ``alpha`` is the survival of a token on an edge of speed 1.
        p_uniform: in [0, 1), the share of noise among words: of all tokens, how many are words and redrawn when these
            are most. It is what ``GIDD`` means, where they are most at t = 1/2. Or one number for each level below the
            mask, words first: the same of tokens that come to the level at once, by redraws in it. A single number
            is for words, and clusters are not redrawn. It sets :math:`\lambda_i / s_i`, whatever the schedule and
            the speeds.
        frequency: (V,) how often each word is drawn, at least 0, in any unit; default all alike.

    Raises:
        TypeError: arguments of another kind.
        ValueError: p_uniform outside [0, 1) or not one number, or one per level below the mask; a frequency that is
            negative, not finite, 0 everywhere, or not one per word; alpha not decreasing from 1 to 0.

    Example:
        >>> from ddlib.schedules import Linear
        >>> process = Noisy(Tree([[0, 0, 1, 1]]), Linear(), p_uniform=0.2)
        >>> process.likelihood(torch.tensor([[0, 1, 3, 4, 6]]), torch.zeros(1, 5).long(), torch.tensor([0.5]))
        tensor([[0.3504, 0.0499, 0.0499, 0.3091, 0.1534]], dtype=torch.float64)
    """

    closed_form = True

    def marginal(self, x: Tokens, t: Times) -> StateProbs:
        self.check_inputs(x=x, t=t)
        words = one_hot(x, self.vocab_size).to(torch.float64)
        given = [words] + [self.hierarchy.between(0, i).row(x) for i in range(1, self._depth + 1)]
        return self._mixed(self.shares(t), given).to(t.dtype)

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        return self._mixed(self.shares(t), self.hierarchy.laws(p))

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        return self._at(self.shares(t), reach(self.hierarchy, x, z), z)

    def token_likelihood(self, z: Tokens, t: Times) -> TokenProbs:
        kept, redrawn = (taken(part, self.level_of(z))[..., None] for part in self.shares(t))
        return kept * reach_of_tokens(self.hierarchy, z) + redrawn * self.typical[z][..., None]

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        chain = self.chain
        again = torch.cat([chain.rates, chain.rates.new_zeros(1)])[self._level]
        redraws = again[:, None] * (self._level[:, None] == self._level) * self.typical
        rate = self.schedule.rate(interior(scalar(t, "t", self.device)))
        return rate * (dense(self.hierarchy, chain.levels()) + redraws)

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        kept, redrawn = self.chain.transition(elapsed(self.schedule, *span(s, t, self.device)))
        return dense(self.hierarchy, kept) + redrawn[self._level][:, self._level] * self.typical

    def posterior(self, p: TokenProbs, z: Tokens, t: Times, s: Times) -> StateProbs:
        self.check_inputs(z=z, t=t, s=s, p=p)
        level = self.level_of(z)
        kept, redrawn = (into(part, level).to(p.dtype) for part in self.shares_between(s, t))
        ways = [
            kept[..., i : i + 1] * self._leads(z, i).to(p.dtype)
            + redrawn[..., i : i + 1] * self.typical[z][..., None].to(p.dtype)
            for i in range(self._depth + 1)
        ]
        joint = torch.cat(ways, -1) * self.predictive(p, s)
        total = joint.sum(-1, keepdim=True)
        stay = one_hot(z, self.num_states).to(p.dtype)  # a word given at t = 1 (a prompt) stays
        return torch.where(total > 0, joint / torch.where(total > 0, total, 1.0), stay)

    def reverse_rate(self, p: TokenProbs, z: Tokens, t: Times) -> StateProbs:
        self.check_inputs(z=z, t=t, p=p)
        t = interior(t)
        law = self.predictive(p, t)
        rates = torch.cat([self._arrivals(z, i) for i in range(self._depth + 1)], -1)
        rates = (beside(self.schedule.rate(t))[..., None] * rates).to(p.dtype) * law / law.gather(-1, z[..., None])
        return rates.scatter(-1, z[..., None], 0.0)

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        shares = self.shares(self._one().expand(len(x)) if t is None else t)
        result = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        uniform = torch.full((1, 1, self.vocab_size), 1 / self.vocab_size, dtype=torch.float64, device=x.device)
        for i, law in enumerate(self.hierarchy.laws(uniform)[:-1]):  # all words lead to the mask
            kept, fresh = self._of_level(shares, i)
            own = self._own(x, i)
            if own is None:
                truth = kept * self.hierarchy.between(0, i).row(x) + fresh
                result += (torch.xlogy(truth, truth) - torch.xlogy(truth, kept * law + fresh)).sum(-1)
                continue
            before, after = torch.xlogy(fresh, fresh), torch.xlogy(fresh, kept * law + fresh)
            others = (before - after).sum(-1) - _pick(before - after, own)
            same = (kept + _expand(fresh, own)).gather(-1, own[..., None])[..., 0]
            result += others + torch.xlogy(same, same) - torch.xlogy(same, _pick(kept * law + fresh, own))
        return result.clamp_min(0)

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        """The rate into z, from every state and from z itself by redraws, over q_t(z|x)."""
        t = interior(t)
        return self._weigh(self.shares(t), x, z, t)[0]

    def weighted_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times) -> tuple[PerToken, PerToken]:
        r"""The rate into z over q_t(z|x), and the mean divergence of where z may have come from.

        Into z of level i come its children y at :math:`s_{i-1} K(z|y)` and all members y of its own level at
        :math:`\lambda_i \pi_i(z)`, which is one sum over the level. With :math:`A(y) = q_t(y|x)`, :math:`B(y) =
        q_t(y|p)` and :math:`m(y) = \log \frac{B(y)}{A(y)} - \log \frac{B(z)}{A(z)}` each costs :math:`A(y) (e^{m(y)} -
        1 - m(y)) / A(z)` (theory section 1).
        """
        t, level, dtype = interior(t), self.level_of(z), logits.dtype
        shares, laws = self.shares(t), [logits.log_softmax(-1)]
        weight, flow = self._weigh(shares, x, z, t)
        for edge in self.hierarchy.maps[:-1]:
            laws.append(edge.log_push(laws[-1]))
        # given the level: probabilities of high levels near the data are too small for float32
        sides = [self._sides(shares.given_level, i, law, x) for i, law in enumerate(laws)]
        here = torch.zeros(z.shape, dtype=dtype, device=z.device)
        for i, (_, _, gap) in enumerate(sides):
            there = gap.gather(-1, self.hierarchy.local(z, i)[..., None])[..., 0]
            here = torch.where(level == i, there, here)
        divergence = torch.zeros_like(here)
        for i, (truth, log_model, gap) in enumerate(sides):
            scale = torch.where(flow > 0, beside(shares.levels[..., i]) / torch.where(flow > 0, flow, 1.0), 0.0)
            arrivals = (self._arrivals(z, i) * scale[..., None]).to(dtype)
            comes, shift = arrivals > 0, gap - here[..., None]
            near, model = shift.clamp(-1, 1), (log_model - here[..., None]).masked_fill(~comes, -torch.inf).exp()
            # of two forms the one that loses no digits; neither is infinite, for its gradient's sake
            cost = torch.where(shift.abs() < 1, truth * (torch.expm1(near) - near), model - truth * (1 + shift))
            divergence = divergence + torch.where(comes, arrivals * cost, 0.0).sum(-1)
        return weight.to(dtype), divergence

    def small_copy(self, vocab_size: int) -> Self:
        """The same shares over ``hierarchy.small_copy``, with frequencies from the smallest to the largest."""
        small, frequency = self.hierarchy.small_copy(vocab_size), self.frequency
        if frequency is not None:
            kept = torch.linspace(0, self.vocab_size - 1, small.vocab_size, dtype=torch.float64).round().long()
            frequency = frequency.sort().values[kept.to(frequency.device)]
            frequency = frequency + (frequency.sum() == 0)
        return type(self)(small, self.schedule, self.p_uniform, frequency)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        words, clusters = [0, 0, 1, 1, 2, 3], [0, 1, 1, 0]
        return [
            cls(Flat(4), Linear(), 0.3),
            cls(Tree([words[:5]]), Cosine(), 0.2, [3.0, 1.0, 1.0, 2.0, 5.0]),
            cls(Tree([words], xi=0.8), Linear(), [0.1, 0.4]),
            cls(Tree([words, clusters], xi=[1.0, 0.9], speed=[0.7, 1.3, 2.0]), Linear(), [0.2, 0.0, 0.1]),
        ]

    def __repr__(self) -> str:
        shares = self.p_uniform[0] if not any(self.p_uniform[1:]) else self.p_uniform
        often = "" if self.frequency is None else f", frequency={digest(self.frequency)}"
        return f"{type(self).__name__}({self.hierarchy!r}, {self.schedule!r}, p_uniform={shares}{often})"

    def _weigh(self, shares: LevelProbs, x: Tokens, z: Tokens, t: Times) -> tuple[PerToken, PerToken]:
        """The rate into z over q_t(z|x); and on the clock, not over it."""
        here = reach(self.hierarchy, x, z)
        flow, likelihood = self._at(self.chain.inflow(shares), here, z), self._at(shares, here, z)
        rate = beside(self.schedule.rate(t))
        return torch.where(likelihood > 0, rate * flow / torch.where(likelihood > 0, likelihood, 1.0), 0.0), flow

    def _mixed(self, shares: LevelProbs, laws: list[Tensor]) -> Tensor:
        """q of all states from the laws of each level's member, not redrawn."""
        parts = []
        for i, law in enumerate(laws):
            kept, fresh = self._of_level(shares, i)
            parts.append(kept.to(law.dtype) * law + fresh.to(law.dtype))
        return torch.cat(parts, -1)

    def _of_level(self, shares: LevelProbs, i: int) -> tuple[Tensor, Tensor]:
        """k_i, (B, 1, 1) or (B, L, 1), and r_i pi_i of each member, (B, 1, K) or (B, L, K)."""
        kept, redrawn = (beside(part, 1)[..., i : i + 1] for part in shares)
        return kept, redrawn * self.typical[self.hierarchy.states(i)]

    def _leads(self, z: Tokens, i: int) -> Float64[Tensor, "B L K"]:
        """K(z|y) from every member y of level i to ``z``."""
        level = self.level_of(z)
        itself = one_hot(self.hierarchy.local(z, i), self.levels[i]).to(torch.float64)
        leads = torch.where((level == i)[..., None], itself, 0.0)
        for j in range(i + 1, self._depth + 1):
            column = self.hierarchy.between(i, j).column(self.hierarchy.local(z, j))
            leads = torch.where((level == j)[..., None], column, leads)
        return leads

    def _arrivals(self, z: Tokens, i: int) -> Float64[Tensor, "B L K"]:
        """The rate on the clock at which every member of level i becomes ``z``, itself included."""
        level, chain = self.level_of(z)[..., None], self.chain
        if i == self._depth:
            return torch.zeros(*z.shape, 1, dtype=torch.float64, device=z.device)
        above = self.hierarchy.maps[i].column(self.hierarchy.local(z, i + 1)) * chain.speeds[i]
        again = chain.rates[i] * self.typical[z][..., None]
        return torch.where(level == i + 1, above, torch.where(level == i, again, 0.0))

    def _own(self, x: Tokens, i: int) -> Tokens | None:
        """The member of level i that words lead to; None where they may lead to several."""
        if i == 0:
            return x
        route = self.hierarchy.between(0, i)
        return route.parents[x] if route.spread is None else None

    def _sides(self, shares: LevelProbs, i: int, log_probs: Tensor, x: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """A(y), log B(y) and log B(y) / A(y) of every member of level i, (B, L, K) each, by these shares."""
        (kept, fresh), dtype, own = self._of_level(shares, i), log_probs.dtype, self._own(x, i)
        log_fresh = fresh.log().clamp_min(-1e4)  # e^-1e4 is 0, and unlike -inf has a gradient
        log_model = torch.logaddexp(kept.log().to(dtype) + log_probs, log_fresh.to(dtype))
        if own is None:
            truth = kept * self.hierarchy.between(0, i).row(x) + fresh
            return truth.to(dtype), log_model, log_model - truth.log().to(dtype)
        odds = (kept.log() - fresh.log()).clamp(-1e4, 745.0)
        gap = log1p_exp(odds.to(dtype) + log_probs)
        at, log_own = own[..., None], log_probs.gather(-1, own[..., None])
        mine = _expand(odds, own).gather(-1, at).to(dtype)
        again = _expand(fresh, own).gather(-1, at)
        truth = _expand(fresh.to(dtype), own).scatter(-1, at, (again + kept).to(dtype))
        # what is never redrawn has infinite odds, which rounding would feel
        short = torch.where(again > 0, falls_short(mine, log_own), -log_own)
        return truth, log_model, gap.scatter(-1, at, -short)


def _expand(values: Tensor, like: Tokens) -> Tensor:
    return values.expand(*like.shape, -1)


def _pick(values: Tensor, index: Tokens) -> Tensor:
    """values (B, 1, K) or (B, L, K) at the index of each token, (B, L)."""
    return _expand(values, index).gather(-1, index[..., None])[..., 0]
