"""Hierarchical process that also resamples tokens and clusters (theory section 13)."""

import torch
from planting import WORDS, deep, fault

import ddlib as dd
from ddlib.processes import Noisy
from ddlib.processes.resampling_chain import LevelProbs
from ddlib.schedules import Linear


def noisy(cls, xi=0.8, frequency=(3.0, 1.0, 1.0, 2.0, 5.0, 1.0)):
    """Process of the class that resamples tokens and clusters, with the linear schedule."""
    return cls(
        dd.hierarchies.Tree([WORDS], xi=xi, speed=[2.0, 1.0]), Linear(), [0.3, 0.2], frequency
    )


@fault("pi_{i+1} = pi_i K_i")
def the_resampling_distribution_of_clusters_is_uniform(patch):
    process = noisy(Noisy)
    process.typical[6:10] = 0.25
    return process


@fault("(i, redrawn) -> (i + 1, redrawn)", Noisy, build=noisy)
def the_probability_of_resampled_clusters_is_counted_as_kept(shares, self, t):
    kept, redrawn = shares(t)
    moved = torch.zeros_like(kept)
    moved[:, 1] = redrawn[:, 1]
    return LevelProbs(kept + moved, redrawn - moved)


@fault("q_{t|s} contains only resampling after s", Noisy, build=noisy)
def the_transition_from_tokens_starts_at_time_0(transition, self, s, t):
    result = transition(s, t)
    first = transition(0.0, t)
    result[:6] = first[:6]
    return result


@fault("resampling counts in the exit rate", Noisy, build=noisy)
def the_diagonal_of_the_rate_matrix_omits_resampling(rate_matrix, self, t):
    q = rate_matrix(t)
    return q + torch.diag(torch.cat([self.chain.rates, torch.zeros(1).double()])[self._level])


@fault("resampled tokens follow pi", Noisy, build=noisy)
def tokens_are_resampled_uniformly_in_place_of_by_frequency(_resample, self, noise):
    return (next(noise) * self.vocab_size).long()


@fault("resampled clusters follow pi_i", Noisy, build=noisy)
def resampled_clusters_are_drawn_as_clusters_of_the_original_token(
    _ascend, self, z, state, generator
):
    return _ascend(z, torch.where(state == 3, 2, state), generator)


@fault("the bound contains flows into z from its own level", Noisy, build=noisy)
def the_divergence_at_tokens_is_0(weighted_divergence, self, logits, x, z, t):
    weight, divergence = weighted_divergence(logits, x, z, t)
    return weight, torch.where(z < self.vocab_size, 0.0, divergence)


@fault("q_t(y|x) = k u(y|x) + r pi(y), also for the children", Noisy, build=noisy)
def the_bound_computes_the_marginals_without_resampling(_sides, self, shares, i, log_probs, x):
    return _sides(LevelProbs(shares.kept, shares.redrawn * 1e-9), i, log_probs, x)


@fault(
    "the divergence within a level is A (e^m - 1 - m) / A(z), m the difference between y and z",
    Noisy,
    build=noisy,
)
def the_divergence_at_z_equal_to_x_is_a_scaled_cross_entropy(
    weighted_divergence, self, logits, x, z, t
):
    weight, divergence = weighted_divergence(logits, x, z, t)
    log_p = logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
    return weight, torch.where(z == x, -log_p * 0.1, divergence)


@fault(
    "the mean weight is the sum of all fluxes, including those of resampling", Noisy, build=noisy
)
def the_mean_weight_omits_the_fluxes_of_resampling(_weight_and_mean, self, x, z, t):
    mean, here = _weight_and_mean(x, z, t)
    kept, redrawn = self.shares(t)
    again = ((kept + redrawn)[:, :-1] * self.chain.rates).sum(1, keepdim=True)
    return mean - self.schedule.rate(t)[:, None] * again, here


@fault("q_{t|s}(z|y) has a part independent of y", Noisy, build=noisy)
def the_posterior_omits_resampling_between_s_and_t(shares_between, self, s, t):
    kept, redrawn = shares_between(s, t)
    return LevelProbs(kept + redrawn, torch.zeros_like(redrawn))


@fault("the reverse rate within a level is Q_t(y, z) q_t(y|p) / q_t(z|p)", Noisy, build=noisy)
def reverse_rates_within_a_level_are_0(reverse_rate, self, p, z, t):
    rates = reverse_rate(p, z, t)
    return torch.where(self._level == self.level_of(z)[..., None], 0.0, rates)


@fault("draws of z_s follow the posterior", Noisy, build=noisy)
def draws_of_z_s_replace_s_below_one_half_by_nearly_0(
    sample_posterior, self, logits, z, t, s, noise, **how
):
    near = torch.full_like(s, 1e-9)
    return sample_posterior(logits, z, t, torch.where(s < 0.5, near, s), noise, **how)


@fault("draws of z_s follow the posterior", Noisy, build=noisy)
def a_share_of_the_drawn_tokens_is_replaced_by_uniform_tokens(
    sample_posterior, self, logits, z, t, s, noise, **how
):
    landed = sample_posterior(logits, z, t, s, noise, **how)
    words = (noise[0] * 104729 % 1 * self.vocab_size).long()
    lost = noise[0] * 7919 % 1 < 0.3
    return torch.where(lost & (landed < self.vocab_size) & (z < self.vocab_size), words, landed)


@fault("prior_kl is KL(q_t(.|x) || q_t(.|uniform token)), with r pi in both", Noisy, build=noisy)
def the_prior_kl_omits_resampling(prior_kl, self, x, t=None):
    return dd.processes.Hierarchical(self.hierarchy, self.schedule).prior_kl(x, t)


@fault(
    "states in the levels between tokens and mask are resampled too",
    Noisy,
    deep(),
    Linear(),
    [0.2, 0.3, 0.1],
)
def the_rate_matrix_omits_resampling_in_the_first_level_of_clusters(rate_matrix, self, t):
    chain = self.chain
    q = rate_matrix(t)
    other = Noisy(
        self.hierarchy,
        self.schedule,
        [*self.p_uniform[:1], 0.0, *self.p_uniform[2:]],
        self.frequency,
    )
    return q if float(chain.rates[1]) == 0 else other.rate_matrix(t)
