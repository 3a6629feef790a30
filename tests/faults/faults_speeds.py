"""Speeds per token: bound and draws of ``PerWord``."""

import torch
from planting import fault

from ddlib.processes import PerWord, unsqueeze_times
from ddlib.schedules import Cosine
from ddlib.utils.random import rand

POWERS = [0.5, 2.0, 1.0, 1.5]


def paced(cls, **options):
    return cls(Cosine(), POWERS, **options)


@fault("pi(y) in proportion to p(y) (1 - alpha^gamma_y)", PerWord, build=paced)
def the_bound_omits_the_masking_probabilities_of_the_tokens(
    weighted_divergence, self, logits, x, z, t
):
    return weighted_divergence(logits - self._log_lost(t)[:, None].to(logits.dtype), x, z, t)


@fault("- lambda_x + sum_y pi(y) lambda_y", PerWord, build=paced)
def the_bound_with_token_powers_is_a_weighted_cross_entropy(
    weighted_divergence, self, logits, x, z, t
):
    weight, divergence = weighted_divergence(logits, x, z, t)
    log_pi = (logits + self._log_lost(t)[:, None].to(logits.dtype)).log_softmax(-1)
    share = (
        (self.return_rates(t) - self.return_rates(t).amax(1, keepdim=True)).exp().to(logits.dtype)
    )
    nats = -share.gather(1, x) * log_pi.gather(-1, x[..., None])[..., 0]
    return weight, torch.where(divergence > 0, nats, 0.0)


@fault("lambda_x = gamma_x r alpha^gamma_x / (1 - alpha^gamma_x)", PerWord, build=paced)
def the_return_rate_omits_the_power(return_rates, self, t):
    return return_rates(t) - self.powers.log()


@fault("alpha^gamma_x for every x", PerWord, build=paced)
def sample_uses_power_1_for_all_tokens(sample, self, x, t, generator=None, levels="independent"):
    if levels == "balanced":
        return sample(x, t, generator, levels)
    self.check_inputs(x=x, t=t)
    stays = rand(x.shape, generator, x.device) < unsqueeze_times(self.schedule.alpha(t.double()))
    return torch.where(stays, x, self.vocab_size)


@fault(
    "the probability of a jump depends on the drawn token", PerWord, Cosine(), [0.1, 8.0, 1.0, 3.0]
)
def masks_jump_independently_of_the_drawn_token(
    sample_posterior, self, logits, z, t, s, noise, **how
):
    x = sample_posterior(logits, z, t, torch.zeros_like(s), noise, **how)
    a = self.schedule.alpha(s.double())
    b = self.schedule.alpha(t.double())
    jumps = noise[1] < ((a - b) / (1 - b))[:, None]
    return torch.where(jumps, x, z)


@fault("p(y) (alpha_s^gamma_y - alpha_t^gamma_y) in the posterior of a mask", PerWord, build=paced)
def the_posterior_of_a_mask_uses_equal_powers_for_all_tokens(posterior, self, p, z, t, s):
    probs = posterior(p, z, t, s)
    words = p * (1 - probs[..., -1:])
    return torch.where(
        (z < self.vocab_size)[..., None], probs, torch.cat([words, probs[..., -1:]], -1)
    )


@fault("q_{t|s}(m|x) = 1 - (alpha_t / alpha_s)^gamma_x", PerWord, build=paced)
def sample_forward_uses_the_power_of_the_first_token(sample_forward, self, z, s, t, generator=None):
    first = torch.where(z < self.vocab_size, 0, z)
    later = sample_forward(first, s, t, generator)
    return torch.where(later < self.vocab_size, z, later)
