"""Paces of words, and speeds that are learned: the bound of ``PerWord``, its draws, and gradients that are slopes."""

import torch
from planting import WORDS, fault, hierarchical

import ddlib as dd
from ddlib.processes import Hierarchical, PerWord
from ddlib.processes.level_chain import LevelChain
from ddlib.schedules import Cosine, Linear
from ddlib.utils.random import rand

POWERS = [0.5, 2.0, 1.0, 1.5]


def paced(cls, **options):
    return cls(Cosine(), POWERS, **options)


def learning(cls=dd.hierarchies.Tree):
    return cls([WORDS], xi=0.8, speed=[2.0, 1.0], learn_speeds=True)


@fault("pi(y) in proportion to p(y) (1 - alpha^gamma_y)")
def a_mask_stands_for_every_word_alike(patch):
    class Broken(PerWord):
        def weighted_divergence(self, logits, x, z, t):
            return super().weighted_divergence(logits - self._log_lost(t)[:, None].to(logits.dtype), x, z, t)

    return paced(Broken)


@fault("- lambda_x + sum_y pi(y) lambda_y")
def the_bound_of_paced_words_is_a_cross_entropy(patch):
    class Broken(PerWord):
        def weighted_divergence(self, logits, x, z, t):
            weight, divergence = super().weighted_divergence(logits, x, z, t)
            log_pi = (logits + self._log_lost(t)[:, None].to(logits.dtype)).log_softmax(-1)
            share = (self.return_rates(t) - self.return_rates(t).amax(1, keepdim=True)).exp().to(logits.dtype)
            nats = -share.gather(1, x) * log_pi.gather(-1, x[..., None])[..., 0]
            return weight, torch.where(divergence > 0, nats, 0.0)

    return paced(Broken)


@fault("lambda_x = gamma_x r alpha^gamma_x / (1 - alpha^gamma_x)")
def the_return_rate_forgets_the_power(patch):
    class Broken(PerWord):
        def return_rates(self, t):
            return super().return_rates(t) - self.powers.log()

    return paced(Broken)


@fault("alpha^gamma_x for every x")
def all_words_are_drawn_at_one_pace(patch):
    class Broken(PerWord):
        def sample(self, x, t, generator=None):
            stays = rand(x.shape, generator, x.device) < self.schedule.alpha(t.double())[:, None]
            self.check_inputs(x=x, t=t)
            return torch.where(stays, x, self.vocab_size)

    return paced(Broken)


@fault("the jump depends on the network")
def a_mask_jumps_before_anybody_knows_its_word(patch):
    class Broken(PerWord):
        def sample_given_level(self, logits, z, t, s, target, generator=None, **options):
            x = super().sample_given_level(logits, z, t, torch.zeros_like(s), target, generator, **options)
            a, b = self.schedule.alpha(s.double()), self.schedule.alpha(t.double())
            jumps = rand(z.shape, generator, z.device) < ((a - b) / (1 - b))[:, None]
            return torch.where(jumps, x, z)

    return Broken(Cosine(), [0.1, 8.0, 1.0, 3.0])


@fault("p(y) (alpha_s^gamma_y - alpha_t^gamma_y) in the posterior of a mask")
def the_posterior_of_a_mask_weighs_words_as_at_one_pace(patch):
    class Broken(PerWord):
        def posterior(self, p, z, t, s):
            law = super().posterior(p, z, t, s)
            words = p * (1 - law[..., -1:])
            return torch.where((z < self.vocab_size)[..., None], law, torch.cat([words, law[..., -1:]], -1))

    return paced(Broken)


@fault("q_{t|s}(m|x) = 1 - (alpha_t / alpha_s)^gamma_x")
def words_go_on_at_the_pace_of_the_first(patch):
    class Broken(PerWord):
        def sample_forward(self, z, s, t, generator=None):
            first = torch.where(z < self.vocab_size, 0, z)
            later = super().sample_forward(first, s, t, generator)
            return torch.where(later < self.vocab_size, z, later)

    return paced(Broken)


@fault("d a_i / d speed")
def occupancies_pass_no_gradient_on(patch):
    class Broken(Hierarchical):
        def occupancies(self, t):
            return super().occupancies(t).detach()

    return hierarchical(Broken, learning())


@fault("d w_i / d speed")
def weights_are_constants_of_the_speeds(patch):
    class Broken(Hierarchical):
        def weights(self, t):
            return super().weights(t).detach()

    return hierarchical(Broken, learning())


@fault("occupancies follow the speeds that were learned")
def the_levels_remember_where_learning_began(patch):
    class Broken(Hierarchical):
        start = None

        @property
        def chain(self):
            if self.start is None:
                self.start = self.hierarchy.speeds
            return LevelChain(self.start)

    return hierarchical(Broken, learning())


@fault("d lambda_x / d gamma_x")
def the_rates_of_words_are_constants_of_the_powers(patch):
    class Broken(PerWord):
        def return_rates(self, t):
            return super().return_rates(t).detach()

    return Broken(Linear(), POWERS, learn_speeds=True)
