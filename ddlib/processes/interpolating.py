"""Interpolating processes: a token is kept, or resampled from a distribution that depends on time
alone.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.processes.base import ForwardProcess, identity, replaceable_by_all
from ddlib.processes.broadcasting import (
    gather_last,
    interior,
    normalise_or_stay,
    quotient,
    scalar,
    span,
    unsqueeze_times,
)
from ddlib.processes.mixture import Mixture, choice_kl, compare, log_ratio, sum_of_others
from ddlib.typing import (
    Logits,
    PerToken,
    Sharpen,
    StateMatrix,
    StateProbs,
    Times,
    TokenProbs,
    Tokens,
)
from ddlib.utils.categorical import draw, draw_logits
from ddlib.utils.precision import float32_or_wider
from ddlib.utils.random import Generator, uniforms


class Interpolating(ForwardProcess):
    r"""A token is kept, or resampled as a uniform token or the mask: q_t = alpha_t x + beta_t pi_t.

    The mixing distribution may vary in time, so this is not of the form exp(sigma G). Every state
    jumps to state z at the same rate :math:`r_t(z) = \beta_t \pi_t'(z) - (\alpha_t'/\alpha_t)
    \pi_t(z)` (theory section 5).

    Args:
        vocab_size: number of tokens V.
        masked: True if there is a mask state, S = V + 1.
        uniform: True if tokens are ever drawn uniformly.
    """

    fused = "uniform"

    def __init__(self, vocab_size: int, *, masked: bool, uniform: bool) -> None:
        super().__init__(vocab_size, vocab_size + masked)
        self.uniform = uniform

    @abstractmethod
    def mixture(self, t: Tensor) -> Mixture:
        """Return alpha_t and beta_t pi_t at times ``t`` of any shape, float64."""

    @abstractmethod
    def mixture_between(self, s: Tensor, t: Tensor) -> Mixture:
        """Return the mixture of the transition from ``s`` to ``t``."""

    @abstractmethod
    def mixing_rates(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rates r_t of each token and of the mask, per unit of time."""

    def marginal(self, x: Tokens, t: Times) -> StateProbs:
        self.check_inputs(x=x, t=t)
        return self.predictive(one_hot(x, self.vocab_size).double(), t).to(t.dtype)

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        keep, token, mask = (v.to(p.dtype)[..., None] for v in self._at(t))
        probs = keep * p + token
        return (
            torch.cat([probs, mask.expand_as(probs[..., :1])], -1)
            if self.num_states > self.vocab_size
            else probs
        )

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        return self._prob(self._at(t), z == x, z)

    def token_likelihood(self, z: Tokens, t: Times) -> TokenProbs:
        now = Mixture(*(v[..., None] for v in self._at(t)))
        here = z[..., None]
        return self._prob(now, here == torch.arange(self.vocab_size, device=z.device), here)

    def sample(
        self, x: Tokens, t: Times, generator: Generator = None, levels: str = "independent"
    ) -> Tokens:
        """Draw z_t ~ q_t(.|x): first keep or resample, then the new state.

        No (B, L, S) tensor is built.
        """
        self.check_inputs(x=x, t=t)
        now = self._at(t)
        keep = self._uniforms(x, generator, levels) < now.keep
        noise = uniforms(x.shape, generator, x.device)
        z = torch.where(keep, x, self._resample(now, noise))
        if levels != "balanced":
            return z
        token, mask = (unsqueeze_times(v).expand(x.shape) for v in self.mixing_rates(interior(t)))
        # where no position has a weight, any is drawn
        share = self._over_states(token, mask).clamp_min(torch.finfo(torch.float64).tiny)
        noise = uniforms((len(x), 1), generator, x.device)
        which = draw(share, next(noise)[:, 0])[:, None]
        arrival = Mixture(torch.zeros_like(which), token.gather(1, which), mask.gather(1, which))
        return z.scatter(1, which, self._resample(arrival, noise))

    def _weight_and_mean(
        self, x: Tokens, z: Tokens, t: Times
    ) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B L"]]:
        """Mean over noise of the bound's weight, and the weight at z.

        The mean is the sum of all rates.
        """
        total = unsqueeze_times(self._over_states(*self.mixing_rates(interior(t))))
        return total.expand(z.shape), self.loss_weight(x, z, t)

    def sample_forward(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        """Draw z_t ~ q_{t|s}(.|z_s): first keep or resample, then the new state."""
        self.check_inputs(z=z, t=t, s=s)
        since = self._between(s, t)
        noise = uniforms(z.shape, generator, z.device)
        keep = next(noise) < since.keep
        return torch.where(keep, z, self._resample(since, noise))

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        time = interior(scalar(t, "t", self.device))
        states = torch.arange(self.num_states, device=time.device)
        into = self._into(states, *self.mixing_rates(time))
        rates = into * (1 - torch.eye(self.num_states).to(into))
        return rates - torch.diag(rates.sum(1))

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        early, late = span(s, t, self.device)
        keep, *resampled = self.mixture_between(early, late)
        into = self._into(torch.arange(self.num_states, device=late.device), *resampled)
        return keep * torch.eye(self.num_states).to(into) + into

    def posterior(self, p: TokenProbs, z: Tokens, t: Times, s: Times) -> StateProbs:
        """Posterior: z_s = z with probability alpha_{t|s} q_s(z|p) / q_t(z|p), else z_s is drawn
        from q_s(.|p).
        """
        self.check_inputs(z=z, t=t, s=s, p=p)
        before = self.predictive(p, s)
        keep, token, mask = (v.to(p.dtype)[..., None] for v in self._between(s, t))
        here = z[..., None]
        stay = keep * before.gather(-1, here)
        move = self._into(here, token, mask)
        return normalise_or_stay((move * before).scatter_add(-1, here, stay), z, stay + move)

    def reverse_rate(self, p: TokenProbs, z: Tokens, t: Times) -> StateProbs:
        self.check_inputs(z=z, t=t, p=p)
        probs = self.predictive(p, interior(t))
        arrival = self._arrival(z, t).to(p.dtype)[..., None]
        here = z[..., None]
        return quotient(arrival * probs, probs.gather(-1, here)).scatter(-1, here, 0.0)

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        t = self._end_or(t, x)
        keep, token, _ = self._at(t)
        typical = keep / self.vocab_size + token
        same = keep + token
        other = (self.vocab_size - 1) * token
        nats = (
            torch.xlogy(same, same)
            - torch.xlogy(same, typical)
            + torch.xlogy(other, token)
            - torch.xlogy(other, typical)
        )
        return nats.clamp_min(0).expand(x.shape)

    def weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        """Closed form of the bound: r_t(z) / q_t(z|x), and ``divergence`` (theory section 5)."""
        weight = self.loss_weight(x, z, t)
        log_p = logits.log_softmax(-1)
        log_px = gather_last(log_p, x)
        if not self.uniform:
            # a token has weight 0, and infinite nats where the network excludes it
            nats = -log_px.masked_fill(z < self.vocab_size, 0)
            return weight, self._at(interior(t)).keep.to(log_p.dtype) * nats
        others = sum_of_others(self.log_ratio(t), log_p, x)
        log_pz = gather_last(log_p, self.states_as_tokens(z))
        return weight, self.divergence(log_px, log_pz, others, x, z, t)

    def log_ratio(self, t: Times) -> Float64[Tensor, "*n"]:
        """Return log of the probability that a token was kept over the probability that it was
        drawn again.
        """
        return log_ratio(self.mixture(interior(t)))

    def divergence(
        self, log_px: PerToken, log_pz: PerToken, others: PerToken, x: Tokens, z: Tokens, t: Times
    ) -> PerToken:
        """KL(q_t(.|x) || q_t(.|p)) + IS(q_t(z|x), q_t(z|p)), from three terms of the network
        (theory section 5).

        They are log p(x), log p(z) (of any token, at masks), and the sum of log(1 + ratio p(.))
        over tokens other than x. Every term vanishes with the divergence and none cancel: near t =
        0 the weight is large and would multiply rounding errors.
        """
        kl, log_odds = compare(self.mixture(interior(t)), log_px, log_pz, others, x, z)
        # float32 ends at e^88; odds beyond e^80 need a time within 1e-19 of the data
        odds = torch.expm1(log_odds.clamp_max(80.0 if log_odds.dtype == torch.float32 else 700.0))
        itakura_saito = torch.where(z < self.vocab_size, odds - log_odds, 0.0)
        return kl.clamp_min(0) + itakura_saito.clamp_min(0)

    def step_divergence(self, logits: Logits, x: Tokens, z: Tokens, t: Times, s: Times) -> PerToken:
        r"""KL of a step by the chain rule.

        First whether the position was resampled since s, then its state at s.

        With :math:`e_x` the probability given x that it was resampled, this is :math:`e_x
        KL(q_s(.|x) || q_s(.|p)) + KL(e_x || e_p)`.
        """
        self.check_inputs(x=x, z=z, t=t, s=s)
        # at s = t = 1 no token was kept or drawn, and their ratio is that of the time before
        before = self._at(s.minimum(interior(s)))
        since = self._between(s, t)
        resample = self._into(z, since.token, since.mask)
        stay = since.keep * self.likelihood(z, x, s)
        log_p = logits.log_softmax(-1)
        log_px = gather_last(log_p, x).double()
        share = resample / (resample + stay).clamp_min(torch.finfo(torch.float64).tiny)
        if not self.uniform:  # a token was never resampled, and all tokens lead to the mask alike
            nats = -log_px.masked_fill(z < self.vocab_size, 0)
            return (share * before.keep * nats).to(logits.dtype)
        log_pz = gather_last(log_p, self.states_as_tokens(z)).double()
        others = sum_of_others(log_ratio(before), log_p, x).double()
        kl, log_odds = compare(before, log_px, log_pz, others, x, z)
        log_pz = (since.keep * before.keep).log() + log_pz
        choice = torch.where(
            z < self.vocab_size, choice_kl(stay, resample, log_pz, log_odds, z == x), 0.0
        )
        return (share * kl.clamp_min(0) + choice).to(logits.dtype)

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        arrival = self._arrival(z, t)
        likelihood = self.likelihood(z, x, interior(t))
        return torch.where(arrival > 0, arrival / torch.where(likelihood > 0, likelihood, 1.0), 0.0)

    def equivalence_classes(
        self,
    ) -> tuple[Int64[Tensor, "N"], Int64[Tensor, "N"], Float64[Tensor, "N"]]:
        """Pairs of one token with itself, with another token, and with the mask: all tokens are
        alike.
        """
        size = self.vocab_size
        counts = torch.tensor([1, size - 1, self.num_states - size], device=self.device)
        z = torch.tensor([0, 1, size], device=self.device)[counts > 0]
        return torch.zeros_like(z), z, counts[counts > 0].double()

    def reachable_from_all_tokens(self, z: Tokens) -> Bool[Tensor, "B L"]:
        """True at the mask, and at tokens where tokens are drawn uniformly."""
        return (z >= self.vocab_size) | (self.uniform or self.vocab_size == 1)

    replaceable = replaceable_by_all

    @property
    def num_uniforms(self) -> int:
        return 5

    def sample_posterior(
        self,
        logits: Logits,
        z: Tokens,
        t: Times,
        s: Times,
        noise: Sequence[Tensor],
        *,
        force: bool = False,
        sharpen: Sharpen = identity,
    ) -> Tokens:
        """Draw z_s without a (B, L, S) tensor: keep the state, or resample it from q_s(.|p)."""
        logits = sharpen(float32_or_wider(logits))
        before = self._at(s)
        since = self._between(s, t)
        stay = since.keep * self._prob(before, self._log_prob(logits, z).exp(), z)
        stay = stay / (stay + self._into(z, since.token, since.mask))
        move_u, model_u, u, *resample_u = noise
        moves = move_u >= stay
        result = torch.where(moves, self._resample(before, iter(resample_u)), z)
        rows = moves & (model_u < before.keep)
        result[rows] = draw_logits(logits[rows], u[rows])
        return result

    def exit_rate(
        self, z: Tokens, t: Times, logits: Logits, sharpen: Sharpen = identity
    ) -> Float64[Tensor, "B L"]:
        """Exit rate r_t(z) (1 - q_t(z|p)) / q_t(z|p), without a (B, L, S) tensor."""
        apart, prob = self._apart(sharpen(float32_or_wider(logits)), z, t)
        return quotient(self._arrival(z, t) * sum(apart), prob)

    def sample_exit(
        self,
        logits: Logits,
        z: Tokens,
        t: Times,
        moves: Bool[Tensor, "B L"],
        generator: Generator = None,
        *,
        force: bool = False,
        sharpen: Sharpen = identity,
    ) -> Tokens:
        """Draw a state of q_t(.|p) other than z, without a (B, L, S) tensor."""
        logits = sharpen(float32_or_wider(logits))
        apart, _ = self._apart(logits, z, t)
        noise = uniforms(z.shape, generator, z.device)
        share = next(noise) * sum(apart)
        other = (next(noise) * self._others(z)).long()
        u = next(noise)
        result = torch.where(share < apart.keep + apart.mask, self.vocab_size, other + (other >= z))
        result = torch.where(moves, result, z)
        rows = moves & (share < apart.keep)
        log_probs = logits[rows]
        states = z[rows]
        at_token = states < self.vocab_size
        log_probs[at_token, states[at_token]] = -torch.inf
        result[rows] = draw_logits(log_probs, u[rows])
        return result

    def _apart(self, logits: Logits, z: Tokens, t: Times) -> tuple[Mixture, Float64[Tensor, "B L"]]:
        """Probability that q_t(.|p) gives to states other than z, by origin, and to z itself, (B,
        L) each.

        ``token`` is the probability of all resampled tokens together, not of each.
        """
        now = self._at(interior(t))
        log_pz = self._log_prob(logits, z)
        apart = Mixture(
            now.keep * -torch.expm1(log_pz),
            now.token * self._others(z),
            torch.where(z < self.vocab_size, now.mask, 0.0),
        )
        return apart, self._prob(now, log_pz.exp(), z)

    def _others(self, z: Tokens) -> Tokens:
        """Return the number of tokens other than the state."""
        return self.vocab_size - (z < self.vocab_size).long()

    def _prob(self, mixture: Mixture, kept: Tensor, z: Int64[Tensor, "*n"]) -> Tensor:
        """Return the probability of z, given that of z where a token is kept."""
        return mixture.keep * kept + self._into(z, mixture.token, mixture.mask)

    def _log_prob(self, logits: Logits, z: Tokens) -> Float64[Tensor, "B L"]:
        """Log-probability log p(z), -inf at masks."""
        log_p = gather_last(logits, self.states_as_tokens(z)) - logits.logsumexp(-1)
        return torch.where(z < self.vocab_size, log_p.double(), -torch.inf)

    def _at(self, t: Times) -> Mixture:
        """Mixture at the time of each sequence, (B, 1), or of each position, (B, L)."""
        return self.mixture(unsqueeze_times(t.double()))

    def _between(self, s: Times, t: Times) -> Mixture:
        """Mixture of the transition from ``s`` to ``t``, (B, 1) or (B, L)."""
        return self.mixture_between(unsqueeze_times(s.double()), unsqueeze_times(t.double()))

    def _arrival(self, z: Tokens, t: Times) -> Float64[Tensor, "B L"]:
        """Rate r_t(z) at which every state jumps to ``z``."""
        return self._into(z, *map(unsqueeze_times, self.mixing_rates(interior(t))))

    def _into(self, z: Tensor, token: Tensor, mask: Tensor) -> Tensor:
        """Return ``token`` where z is a token and ``mask`` where it is the mask: terms that depend
        on z alone.
        """
        return torch.where(z < self.vocab_size, token, mask)

    def _resample(self, mixture: Mixture, noise: Iterator[Tensor]) -> Tokens:
        """Draw states from pi_t, with two uniforms: a uniform token, and the mask in its place."""
        tokens = (next(noise) * self.vocab_size).to(torch.int64)
        share = mixture.mask / (mixture.mask + self.vocab_size * mixture.token)
        return tokens.masked_fill(next(noise) < share, self.vocab_size)

    def _over_states(self, token: Tensor, mask: Tensor) -> Tensor:
        """Sum over all states of a value for each token and one for the mask."""
        return self.vocab_size * token + (self.num_states - self.vocab_size) * mask
