"""Hierarchical diffusion with resampling: tokens and clusters are also replaced by others of their
level.
"""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.hierarchies import Flat, Tree
from ddlib.hierarchies.base import reach, reach_of_tokens, state_matrix
from ddlib.processes.broadcasting import (
    elapsed,
    gather_columns,
    gather_last,
    interior,
    normalise_or_stay,
    quotient,
    scalar,
    span,
    unsqueeze_times,
)
from ddlib.processes.mixture import falls_short, log1p_exp
from ddlib.processes.resampling_chain import LevelProbs
from ddlib.processes.resampling_process import ResamplingProcess
from ddlib.schedules import Cosine, Linear
from ddlib.typing import Logits, PerToken, StateMatrix, StateProbs, Times, TokenProbs, Tokens
from ddlib.utils.repr import digest


class Noisy(ResamplingProcess):
    r"""Tokens ascend a hierarchy and are resampled.

    Tokens as other tokens, clusters as other clusters.

    In level i a position ascends at :math:`s_i` times the rate of the schedule and is resampled at
    :math:`\lambda_i` times this rate, from the distribution :math:`\pi_i` of the level: that of a
    token drawn uniformly, or by frequency, pushed up by the maps. A resampled state is independent
    of the token, and resampling commutes with the maps. So the noise is a Markov chain of a level
    and a flag, kept or resampled (theory section 13). With :math:`k_i(t)` and :math:`r_i(t)` the
    probabilities of level i, kept and resampled,

    .. math:: q_t(z|x) = k_i(t) u_i(z|x) + r_i(t) \pi_i(z), \qquad z \in L_i.

    Without resampling it is ``Hierarchical``; without clusters it is mask and uniform noise at a
    fixed ratio of rates. Forwards, levels are independent of the token. In reverse the next level
    depends on the flag, and so on the network.

    Args:
        hierarchy: the levels, and the transition matrices between them.
        schedule: the schedule; ``alpha`` is the survival of a token on an edge of speed 1.
        p_uniform: in [0, 1), the share of resampled tokens: the largest fraction over time of
            positions that are tokens and resampled. ``GIDD`` has the same definition, with its
            maximum at t = 1/2. Or one number for each level below the mask, tokens first: the same
            fraction for resampling in that level, of positions that all start there. A single
            number is for tokens, and clusters are not resampled. It determines :math:`\lambda_i /
            s_i`, independently of the schedule and the speeds.
        frequency: (V,) frequency with which each token is drawn, at least 0, in any unit; uniform
            by default.

    Raises:
        TypeError: arguments of another kind.
        ValueError: p_uniform outside [0, 1) or not one number, or one per level below the mask; a
            frequency that is negative, not finite, 0 everywhere, or not one per token; alpha not
            decreasing from 1 to 0.

    Example:
        >>> from ddlib.schedules import Linear
        >>> process = Noisy(Tree([[0, 0, 1, 1]]), Linear(), p_uniform=0.2)
        >>> z = torch.tensor([[0, 1, 3, 4, 6]])
        >>> process.likelihood(z, torch.zeros(1, 5).long(), torch.tensor([0.5]))
        tensor([[0.3504, 0.0499, 0.0499, 0.3091, 0.1534]], dtype=torch.float64)
    """

    def marginal(self, x: Tokens, t: Times) -> StateProbs:
        self.check_inputs(x=x, t=t)
        tokens = one_hot(x, self.vocab_size).to(torch.float64)
        rows = [tokens] + [self.hierarchy.between(0, i).row(x) for i in range(1, self._depth + 1)]
        return self._mix_levels(self.shares(t), rows).to(t.dtype)

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        return self._mix_levels(self.shares(t), self.hierarchy.level_probs(p))

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        return self._at(self.shares(t), reach(self.hierarchy, x, z), z)

    def token_likelihood(self, z: Tokens, t: Times) -> TokenProbs:
        kept, resampled = (
            gather_last(part, self.level_of(z))[..., None] for part in self.shares(t)
        )
        return kept * reach_of_tokens(self.hierarchy, z) + resampled * self.typical[z][..., None]

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        chain = self.chain
        again = torch.cat([chain.rates, chain.rates.new_zeros(1)])[self._level]
        resampling = again[:, None] * (self._level[:, None] == self._level) * self.typical
        rate = self.schedule.rate(interior(scalar(t, "t", self.device)))
        return rate * (state_matrix(self.hierarchy, chain.levels()) + resampling)

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        kept, resampled = self.chain.transition(elapsed(self.schedule, *span(s, t, self.device)))
        return (
            state_matrix(self.hierarchy, kept)
            + resampled[self._level][:, self._level] * self.typical
        )

    def posterior(self, p: TokenProbs, z: Tokens, t: Times, s: Times) -> StateProbs:
        self.check_inputs(z=z, t=t, s=s, p=p)
        level = self.level_of(z)
        kept, resampled = (
            gather_columns(part, level).to(p.dtype) for part in self.shares_between(s, t)
        )
        ways = [
            kept[..., i : i + 1] * reach_of_tokens(self.hierarchy, z, i).to(p.dtype)
            + resampled[..., i : i + 1] * self.typical[z][..., None].to(p.dtype)
            for i in range(self._depth + 1)
        ]
        return normalise_or_stay(torch.cat(ways, -1) * self.predictive(p, s), z)

    def reverse_rate(self, p: TokenProbs, z: Tokens, t: Times) -> StateProbs:
        self.check_inputs(z=z, t=t, p=p)
        t = interior(t)
        probs = self.predictive(p, t)
        rates = torch.cat([self._arrivals(z, i) for i in range(self._depth + 1)], -1)
        flux = (unsqueeze_times(self.schedule.rate(t))[..., None] * rates).to(p.dtype) * probs
        return quotient(flux, probs.gather(-1, z[..., None])).scatter(-1, z[..., None], 0.0)

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        shares = self.shares(self._end_or(t, x))
        result = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        uniform = torch.full(
            (1, 1, self.vocab_size), 1 / self.vocab_size, dtype=torch.float64, device=x.device
        )
        for i, probs in enumerate(
            self.hierarchy.level_probs(uniform)[:-1]
        ):  # all tokens lead to the mask
            kept, resampled = self._of_level(shares, i)
            ancestor = self._only_ancestor(x, i)
            if ancestor is None:
                truth = kept * self.hierarchy.between(0, i).row(x) + resampled
                result += (
                    torch.xlogy(truth, truth) - torch.xlogy(truth, kept * probs + resampled)
                ).sum(-1)
                continue
            before = torch.xlogy(resampled, resampled)
            after = torch.xlogy(resampled, kept * probs + resampled)
            others = (before - after).sum(-1) - _pick(before - after, ancestor)
            same = (kept + _expand(resampled, ancestor)).gather(-1, ancestor[..., None])[..., 0]
            typical = _pick(kept * probs + resampled, ancestor)
            result += others + torch.xlogy(same, same) - torch.xlogy(same, typical)
        return result.clamp_min(0)

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        """Rate into z, from every state and from z itself by resampling, over q_t(z|x)."""
        t = interior(t)
        return self._weigh(self.shares(t), x, z, t)[0]

    def weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        r"""Closed form of the bound: the rate into z over q_t(z|x), and the mean divergence over
        the states before z.

        A state z of level i is entered from its children y at :math:`s_{i-1} K(z|y)` and from all
        members y of the same level at :math:`\lambda_i \pi_i(z)`, which is one sum over the level.
        With :math:`A(y) = q_t(y|x)`, :math:`B(y) = q_t(y|p)` and :math:`m(y) = \log
        \frac{B(y)}{A(y)} - \log \frac{B(z)}{A(z)}` the term of y is :math:`A(y) (e^{m(y)} - 1 -
        m(y)) / A(z)` (theory section 1).
        """
        t = interior(t)
        level = self.level_of(z)
        dtype = logits.dtype
        shares = self.shares(t)
        log_probs = [logits.log_softmax(-1)]
        weight, flow = self._weigh(shares, x, z, t)
        for edge in self.hierarchy.maps[:-1]:
            log_probs.append(edge.log_push(log_probs[-1]))
        # conditional on the level: near the data, probabilities of high levels are too small for
        # float32
        sides = [self._sides(shares.given_level, i, each, x) for i, each in enumerate(log_probs)]
        gap_z = torch.zeros(z.shape, dtype=dtype, device=z.device)
        for i, (_, _, gap) in enumerate(sides):
            gap_of_level = gap.gather(-1, self.hierarchy.local(z, i)[..., None])[..., 0]
            gap_z = torch.where(level == i, gap_of_level, gap_z)
        divergence = torch.zeros_like(gap_z)
        for i, (truth, log_model, gap) in enumerate(sides):
            scale = quotient(unsqueeze_times(shares.levels[..., i]), flow)
            arrivals = (self._arrivals(z, i) * scale[..., None]).to(dtype)
            enters = arrivals > 0
            shift = gap - gap_z[..., None]
            near = shift.clamp(-1, 1)
            model = (log_model - gap_z[..., None]).masked_fill(~enters, -torch.inf).exp()
            # the form that loses no digits; both are finite, so that gradients are
            cost = torch.where(
                shift.abs() < 1, truth * (torch.expm1(near) - near), model - truth * (1 + shift)
            )
            divergence = divergence + torch.where(enters, arrivals * cost, 0.0).sum(-1)
        return weight, divergence

    def small_copy(self, vocab_size: int) -> Self:
        """Return the process over ``hierarchy.small_copy``, with frequencies from the smallest to
        the largest.
        """
        small = self.hierarchy.small_copy(vocab_size)
        frequency = self.frequency
        if frequency is not None:
            tokens = (
                torch.linspace(0, self.vocab_size - 1, small.vocab_size, dtype=torch.float64)
                .round()
                .long()
            )
            frequency = frequency.sort().values[tokens.to(frequency.device)]
            frequency = frequency + (frequency.sum() == 0)
        return type(self)(small, self.schedule, self.p_uniform, frequency)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        tokens = [0, 0, 1, 1, 2, 3]
        clusters = [0, 1, 1, 0]
        return [
            cls(Flat(4), Linear(), 0.3),
            cls(Tree([tokens[:5]]), Cosine(), 0.2, [3.0, 1.0, 1.0, 2.0, 5.0]),
            cls(Tree([tokens], xi=0.8), Linear(), [0.1, 0.4]),
            cls(
                Tree([tokens, clusters], xi=[1.0, 0.9], speed=[0.7, 1.3, 2.0]),
                Linear(),
                [0.2, 0.0, 0.1],
            ),
        ]

    def __repr__(self) -> str:
        shares = self.p_uniform[0] if not any(self.p_uniform[1:]) else self.p_uniform
        often = "" if self.frequency is None else f", frequency={digest(self.frequency)}"
        return (
            f"{type(self).__name__}({self.hierarchy!r}, {self.schedule!r}, "
            f"p_uniform={shares}{often})"
        )

    def _weigh(
        self, shares: LevelProbs, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        """Rate into z over q_t(z|x), and the flux into z per unit of -log alpha."""
        given_level = reach(self.hierarchy, x, z)
        flow = self._at(self.chain.inflow(shares), given_level, z)
        likelihood = self._at(shares, given_level, z)
        return quotient(unsqueeze_times(self.schedule.rate(t)) * flow, likelihood), flow

    def _mix_levels(self, shares: LevelProbs, given_level: list[Tensor]) -> Tensor:
        """Distribution over all states from the distribution within each level if kept."""
        parts = []
        for i, probs in enumerate(given_level):
            kept, resampled = (part.to(probs.dtype) for part in self._of_level(shares, i))
            parts.append(kept * probs + resampled)
        return torch.cat(parts, -1)

    def _of_level(self, shares: LevelProbs, i: int) -> tuple[Tensor, Tensor]:
        """Return k_i, (B, 1, 1) or (B, L, 1), and r_i pi_i of each member, (B, 1, K) or (B, L,
        K).
        """
        kept, resampled = (unsqueeze_times(part, 1)[..., i : i + 1] for part in shares)
        return kept, resampled * self.typical[self.hierarchy.states(i)]

    def _arrivals(self, z: Tokens, i: int) -> Float64[Tensor, "B L K"]:
        """Rate per unit of -log alpha at which every member of level i, z included, becomes
        ``z``.
        """
        level = self.level_of(z)[..., None]
        chain = self.chain
        if i == self._depth:
            return torch.zeros(*z.shape, self.levels[-1], dtype=torch.float64, device=z.device)
        above = self.hierarchy.maps[i].column(self.hierarchy.local(z, i + 1)) * chain.speeds[i]
        again = chain.rates[i] * self.typical[z][..., None]
        return torch.where(level == i + 1, above, torch.where(level == i, again, 0.0))

    def _only_ancestor(self, x: Tokens, i: int) -> Tokens | None:
        """Ancestor in level i of each token; None where a token may have several."""
        if i == 0:
            return x
        route = self.hierarchy.between(0, i)
        return route.parents[x] if route.plain else None

    def _sides(
        self, shares: LevelProbs, i: int, log_probs: Tensor, x: Tokens
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return A(y), log B(y) and log B(y) / A(y) of every member of level i under these shares,
        (B, L, K) each.
        """
        kept, resampled = self._of_level(shares, i)
        dtype = log_probs.dtype
        ancestor = self._only_ancestor(x, i)
        log_resampled = resampled.log().clamp_min(
            -1e4
        )  # e^-1e4 is 0, and unlike -inf has a gradient
        log_model = torch.logaddexp(kept.log().to(dtype) + log_probs, log_resampled.to(dtype))
        if ancestor is None:
            truth = kept * self.hierarchy.between(0, i).row(x) + resampled
            return truth.to(dtype), log_model, log_model - truth.log().clamp_min(-1e4).to(dtype)
        odds = (kept.log() - resampled.log()).clamp(-1e4, 745.0)
        gap = log1p_exp(odds.to(dtype) + log_probs)
        index = ancestor[..., None]
        log_p = log_probs.gather(-1, ancestor[..., None])
        log_ratio = _expand(odds, ancestor).gather(-1, index).to(dtype)
        prob = _expand(resampled, ancestor).gather(-1, index)
        truth = _expand(resampled.to(dtype), ancestor).scatter(-1, index, (prob + kept).to(dtype))
        # where nothing is resampled the odds are infinite, and falls_short would lose digits
        short = torch.where(prob > 0, falls_short(log_ratio, log_p), -log_p)
        return truth, log_model, gap.scatter(-1, index, -short)


def _expand(values: Tensor, like: Tokens) -> Tensor:
    return values.expand(*like.shape, -1)


def _pick(values: Tensor, index: Tokens) -> Tensor:
    """Take values (B, 1, K) or (B, L, K) at the index of each position, (B, L)."""
    return _expand(values, index).gather(-1, index[..., None])[..., 0]
