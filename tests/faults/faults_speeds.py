"""Speeds per token and learned speeds: bound and draws of ``PerWord``, gradients of the speeds."""

import torch
from planting import WORDS, fault, hierarchical

import ddlib as dd
from ddlib.processes import Hierarchical, PerWord, unsqueeze_times
from ddlib.processes.level_chain import PowerChain
from ddlib.schedules import Cosine, Linear
from ddlib.utils.random import rand

POWERS = [0.5, 2.0, 1.0, 1.5]


def paced(cls, **options):
    return cls(Cosine(), POWERS, **options)


def learning(cls=dd.hierarchies.Tree):
    return cls([WORDS], xi=0.8, speed=[2.0, 1.0], learn_speeds=True)


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
    sample_given_level, self, logits, z, t, s, target, generator=None, **how
):
    x = sample_given_level(logits, z, t, torch.zeros_like(s), target, generator, **how)
    a = self.schedule.alpha(s.double())
    b = self.schedule.alpha(t.double())
    jumps = rand(z.shape, generator, z.device) < ((a - b) / (1 - b))[:, None]
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


@fault("d a_i / d speed", Hierarchical, learning(), Linear())
def the_occupancies_have_no_gradient(occupancies, self, t):
    return occupancies(t).detach()


@fault("d w_i / d speed", Hierarchical, learning(), Linear())
def the_loss_weights_have_no_gradient(weights, self, t):
    return weights(t).detach()


@fault("occupancies use the learned speeds")
def the_level_chain_uses_the_initial_speeds(patch):
    class Broken(Hierarchical):
        start = None

        @property
        def chain(self):
            if self.start is None:
                self.start = self.hierarchy.speeds
            return PowerChain(self.schedule, self.start)

    return hierarchical(Broken, learning())


@fault("d lambda_x / d gamma_x", PerWord, Linear(), POWERS, learn_speeds=True)
def the_return_rates_have_no_gradient(return_rates, self, t):
    return return_rates(t).detach()
