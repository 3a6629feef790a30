"""Masked diffusion with a masking rate per token."""

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.processes.argument_checks import check_schedule
from ddlib.processes.base import ForwardProcess, identity, replaceable_by_all
from ddlib.processes.broadcasting import (
    elapsed,
    gather_last,
    interior,
    normalise_or_stay,
    scalar,
    span,
    unsqueeze_times,
)
from ddlib.schedules import Cosine, Geometric, Linear, Schedule
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
from ddlib.utils.positive import check_positive
from ddlib.utils.precision import float32_or_wider
from ddlib.utils.random import Generator, rand
from ddlib.utils.repr import digest
from ddlib.utils.validation import require


class PerWord(ForwardProcess):
    r"""Masked diffusion in which token x is masked at :math:`\gamma_x` times the rate of the
    schedule: GenMD4.

    :math:`q_t(\cdot|x) = \alpha_t^{\gamma_x} x + (1 - \alpha_t^{\gamma_x}) m` (Shi et al., 2024).
    Tokens of a large power are masked first and generated last. The posterior of a mask depends on
    the time, so unlike in ``Masked`` the jumps depend on the network. With :math:`r_t` the rate of
    the schedule, :math:`\lambda_x = \gamma_x r_t \alpha_t^{\gamma_x} / (1 - \alpha_t^{\gamma_x})`
    is the rate at which the mask of x is unmasked in reverse. With the posterior of the mask
    :math:`\pi(y) \propto p(y) (1 - \alpha_t^{\gamma_y})` the bound's integrand at a mask is (theory
    section 1, with :math:`a_x = \lambda_x / \gamma_x r_t` and :math:`b_y = \pi(y) \lambda_y /
    \gamma_y r_t`)

    .. math:: -\lambda_x \log \pi(x) - \lambda_x + \sum_y \pi(y) \lambda_y

    Args:
        schedule: the schedule alpha.
        powers: one positive number per token, in [0.001, 1000]; all 1 is ``Masked``.

    Raises:
        TypeError: a schedule of another kind, or powers that are not numbers.
        ValueError: no power, or one outside its limits; alpha not decreasing from 1 to 0.
    """

    schedule: Schedule
    powers: Float64[Tensor, "V"]
    """Exponents gamma, one per token."""

    def __init__(self, schedule: Schedule, powers: Sequence[float] | Tensor) -> None:
        check_schedule(schedule)
        values = _numbers(powers)
        super().__init__(len(values), len(values) + 1)
        self.declare(powers=values)
        self.schedule = schedule
        slowest = min(check_positive("powers", values))
        schedule.check_resolves(
            f"powers: {slowest:g}", lambda duration: math.exp(-slowest * duration)
        )
        self.powers = torch.tensor(values, dtype=torch.float64)

    def small_copy(self, vocab_size: int) -> Self:
        """Return a process with this many of the powers, evenly spaced in order of size."""
        size = min(vocab_size, self.vocab_size)
        tokens = torch.linspace(0, self.vocab_size - 1, size, dtype=torch.float64).round().long()
        powers = self.powers.cpu().sort().values[tokens]
        return type(self)(self.schedule, powers.tolist())

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [
            cls(Linear(), [1.0, 1.0, 1.0]),
            cls(Cosine(), [0.5, 2.0, 1.0, 1.5]),
            cls(Geometric(), [2.0, 0.7, 1.0]),
        ]

    def kept(self, t: Times) -> Float64[Tensor, "*n V"]:
        """Return the probability that each token is not masked at ``t``, (B, V), or (B, L, V) at
        times (B, L).
        """
        return torch.exp(-self._hazards(t))

    def lost(self, t: Times) -> Float64[Tensor, "*n V"]:
        """Return the probability that each token is masked at ``t``, shaped as ``kept``, accurate
        near the data too.
        """
        return -torch.expm1(-self._hazards(t))

    def return_rates(self, t: Times) -> Float64[Tensor, "*n V"]:
        """Return log lambda_x(t), the log of the rate at which the mask of each token is unmasked,
        as ``kept``.
        """
        t = interior(t)
        hazard = self._hazards(t)
        rate = self.schedule.rate(t)
        return (self.powers * rate[..., None]).log() - hazard - torch.log(-torch.expm1(-hazard))

    def marginal(self, x: Tokens, t: Times) -> StateProbs:
        self.check_inputs(x=x, t=t)
        return self.predictive(one_hot(x, self.vocab_size).to(torch.float64), t).to(t.dtype)

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        kept, lost = (unsqueeze_times(each, 1).to(p.dtype) for each in (self.kept(t), self.lost(t)))
        return torch.cat([p * kept, (p * lost).sum(-1, keepdim=True)], -1)

    def likelihood(self, z: Tokens, x: Tokens, t: Times) -> PerToken:
        hazard = self._hazard_of(x, t)
        return torch.where(
            self._mask_rows(z), -torch.expm1(-hazard), torch.where(z == x, torch.exp(-hazard), 0.0)
        )

    def token_likelihood(self, z: Tokens, t: Times) -> TokenProbs:
        same = (z[..., None] == torch.arange(self.vocab_size, device=z.device)).to(torch.float64)
        return torch.where(
            self._mask_rows(z)[..., None],
            unsqueeze_times(self.lost(t), 1),
            same * unsqueeze_times(self.kept(t), 1),
        )

    def sample(
        self, x: Tokens, t: Times, generator: Generator = None, levels: str = "independent"
    ) -> Tokens:
        """Draw z_t ~ q_t(.|x) from one uniform per position; no (B, L, S) tensor is built."""
        self.check_inputs(x=x, t=t)
        stays = self._uniforms(x, generator, levels) < torch.exp(-self._hazard_of(x, t))
        z = torch.where(stays, x, self.vocab_size)
        if levels != "balanced":
            return z
        share = self._weight_and_mean(x, x, t)[0].clamp_min(
            torch.finfo(torch.float64).tiny
        )  # tokens of a large power have no weight late
        which = draw(share, rand((len(x),), generator, x.device))
        return z.scatter(1, which[:, None], self.vocab_size)

    def _weight_and_mean(
        self, x: Tokens, z: Tokens, t: Times
    ) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B L"]]:
        """Mean over noise of the bound's weight, and the weight at z, which is the same at all
        masks of a time.
        """
        weight = self.loss_weight(x, torch.full_like(z, self.vocab_size), t)
        return weight * -torch.expm1(-self._hazard_of(x, interior(t))), torch.where(
            self._mask_rows(z), weight, 0.0
        )

    def sample_forward(self, z: Tokens, s: Times, t: Times, generator: Generator = None) -> Tokens:
        """Draw z_t ~ q_{t|s}(.|z_s): tokens stay or are masked, masks stay."""
        self.check_inputs(z=z, t=t, s=s)
        survival = torch.exp(
            -unsqueeze_times(elapsed(self.schedule, s, t)) * self.powers[self.states_as_tokens(z)]
        )
        return torch.where(rand(z.shape, generator, z.device) < survival, z, self.vocab_size)

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        rate = self.powers * self.schedule.rate(interior(scalar(t, "t", self.device)))
        return self._to_mask(-rate, rate, 0.0)

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        hazard = self.powers * elapsed(self.schedule, *span(s, t, self.device))
        return self._to_mask(torch.exp(-hazard), -torch.expm1(-hazard), 1.0)

    def posterior(self, p: TokenProbs, z: Tokens, t: Times, s: Times) -> StateProbs:
        """Posterior: tokens stay; a mask was y in proportion to p(y) times the probability of
        masking since s.
        """
        self.check_inputs(z=z, t=t, s=s, p=p)
        lost = unsqueeze_times(self.kept(s) * -torch.expm1(-self._between(s, t)), 1).to(p.dtype)
        before = (p * unsqueeze_times(self.lost(s), 1).to(p.dtype)).sum(-1, keepdim=True)
        probs = normalise_or_stay(torch.cat([p * lost, before], -1), z)
        return torch.where(
            self._mask_rows(z)[..., None], probs, one_hot(z, self.num_states).to(p.dtype)
        )

    def reverse_rate(self, p: TokenProbs, z: Tokens, t: Times) -> StateProbs:
        """Reverse rates pi(y) lambda_y from the mask to y."""
        self.check_inputs(z=z, t=t, p=p)
        joint = p.log() + unsqueeze_times(self._log_lost(t), 1).to(p.dtype)
        possible = (joint > -torch.inf).any(-1, keepdim=True)
        probs = torch.where(possible, joint, 0.0).softmax(-1)
        rates = probs * unsqueeze_times(self.return_rates(t).exp(), 1).to(p.dtype)
        rates = torch.where(self._mask_rows(z)[..., None] & possible, rates, 0.0)
        return torch.cat([rates, torch.zeros_like(rates[..., :1])], -1)

    def prior_kl(self, x: Tokens, t: Times | None = None) -> PerToken:
        t = self._end_or(t, x)
        hazard = self._hazard_of(x, t)
        typical = unsqueeze_times(self.lost(t).mean(-1))
        kept = torch.exp(-hazard)
        lost = -torch.expm1(-hazard)
        share = lost / torch.where(typical > 0, typical, 1.0)
        return (
            kept * torch.tensor(self.vocab_size).to(kept).log() + torch.xlogy(lost, share)
        ).clamp_min(0)

    def weighted_divergence(
        self, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> tuple[PerToken, PerToken]:
        """Closed form of the bound: the largest lambda as the weight, and the integrand over it.

        The weight depends on the time alone. So a clipped weight changes how much a time counts,
        but not the optimal prediction at that time. Rates over the weight are at most 1.
        """
        log_rates = self.return_rates(t)
        most = log_rates.amax(-1, keepdim=True)
        share = (log_rates - most).exp().to(logits.dtype)
        log_pi = (logits + unsqueeze_times(self._log_lost(t), 1).to(logits.dtype)).log_softmax(-1)
        share_x = gather_last(share, x)
        log_pi_x = log_pi.gather(-1, x[..., None]).squeeze(-1)
        excess = (log_pi.exp() * unsqueeze_times(share, 1)).sum(-1) - share_x
        divergence = torch.where(
            self._mask_rows(z), (excess - share_x * log_pi_x).clamp_min(0), 0.0
        )
        return self.loss_weight(x, z, t), divergence

    def loss_weight(self, x: Tokens, z: Tokens, t: Times) -> PerToken:
        most = self.return_rates(t).amax(-1).exp()
        return torch.where(self._mask_rows(z), unsqueeze_times(most), 0.0)

    def reachable_from_all_tokens(self, z: Tokens) -> Bool[Tensor, "B L"]:
        """True at the mask."""
        return self._mask_rows(z) | (self.vocab_size == 1)

    replaceable = replaceable_by_all

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
        """Draw the token of a mask, then whether it was masked after s.

        No (B, L, S) tensor is built.
        """
        masked = self._mask_rows(z)
        result = z.clone()
        u, later = noise
        x = self.states_as_tokens(z)
        x[masked] = draw_logits(self._evidence(logits, t, masked, sharpen), u[masked])
        kept = torch.exp(-self._hazard_of(x, s))
        lost = -torch.expm1(-self._hazard_of(x, t))
        masked_since = -torch.expm1(-unsqueeze_times(elapsed(self.schedule, s, t)) * self.powers[x])
        # a mask at a time of no noise was given as a prompt, and stays
        since = (kept * masked_since / torch.where(lost > 0, lost, 1.0))[masked]
        result[masked] = torch.where(later[masked] < since, x[masked], self.vocab_size)
        return result

    def exit_rate(
        self, z: Tokens, t: Times, logits: Logits, sharpen: Sharpen = identity
    ) -> Float64[Tensor, "B L"]:
        """Exit rate of a mask: the mean of lambda over the posterior of its token."""
        masked = self._mask_rows(z)
        rates = torch.zeros(z.shape, dtype=torch.float64, device=z.device)
        probs = self._evidence(logits, t, masked, sharpen).softmax(-1).to(torch.float64)
        rates[masked] = (probs * self._where(masked, self.return_rates(t)).exp()).sum(-1)
        return rates

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
        """Draw the token of a mask in proportion to pi times lambda."""
        rows = moves & self._mask_rows(z)
        result = z.clone()
        u = rand(z.shape, generator, z.device)
        log_probs = self._evidence(logits, t, rows, sharpen).log_softmax(-1)
        result[rows] = draw_logits(
            log_probs + self._where(rows, self.return_rates(t)).to(log_probs.dtype), u[rows]
        )
        return result

    def __repr__(self) -> str:
        powers = str(tuple(self.powers.tolist())) if self.vocab_size <= 8 else digest(self.powers)
        return (
            f"{type(self).__name__}({self.schedule!r}, vocab_size={self.vocab_size}, "
            f"powers={powers})"
        )

    def _evidence(
        self, logits: Logits, t: Times, masked: Bool[Tensor, "B L"], sharpen: Sharpen
    ) -> Float[Tensor, "N V"]:
        """Return log pi after ``sharpen``, not normalised, at the positions that are
        ``masked``.
        """
        log_probs = sharpen(float32_or_wider(logits[masked]))
        return log_probs + self._where(masked, self._log_lost(t)).to(log_probs.dtype)

    def _where(
        self, masked: Bool[Tensor, "B L"], rows: Float64[Tensor, "*n V"]
    ) -> Float64[Tensor, "N V"]:
        """Select the rows, functions of time and token, of the ``masked`` positions."""
        return unsqueeze_times(rows, 1).expand(*masked.shape, -1)[masked]

    def _hazard_of(self, x: Tokens, t: Times) -> Float64[Tensor, "B L"]:
        """Hazard -gamma_x log alpha(t) of the token at each position.

        Other tokens are not computed.
        """
        return unsqueeze_times(self.schedule.hazard(t.to(torch.float64))) * self.powers[x]

    def _log_lost(self, t: Times) -> Float64[Tensor, "*n V"]:
        return self.lost(interior(t)).log()

    def _hazards(self, t: Times) -> Float64[Tensor, "*n V"]:
        return self.schedule.hazard(t.to(torch.float64))[..., None] * self.powers

    def _between(self, s: Times, t: Times) -> Float64[Tensor, "*n V"]:
        return elapsed(self.schedule, s, t)[..., None] * self.powers

    def _mask_rows(self, z: Tokens) -> Bool[Tensor, "B L"]:
        return z >= self.vocab_size

    def _to_mask(self, stay: Tensor, leave: Tensor, mask: float) -> StateMatrix:
        matrix = torch.diag(torch.cat([stay, stay.new_tensor([mask])]))
        matrix[:-1, -1] = leave
        return matrix


def _numbers(powers: Any) -> list[float]:
    """Return the powers as a list of numbers."""
    values = powers.tolist() if hasattr(powers, "tolist") else powers
    if not isinstance(values, list | tuple):
        raise TypeError(f"powers is {powers!r}, must be one positive number per token")
    require(len(values) > 0, "powers is empty, must hold one positive number per token")
    return list(values)
