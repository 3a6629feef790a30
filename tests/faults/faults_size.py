"""Faults of large state spaces: clamped durations, indices that overflow, truncated
distributions.
"""

import torch
from planting import fault, over

from ddlib.hierarchies import Tree
from ddlib.processes import (
    Hierarchical,
    Masked,
    RateMatrix,
    Uniform,
    elapsed,
    matrix_exponential,
    span,
)
from ddlib.schedules import Linear
from ddlib.utils.random import rand

SIZE = 200
SMALL = 64


def walk(cls=RateMatrix, size=SIZE, rate=1500.0):
    """Random walk between neighbouring states, whose mixing time is far longer than its holding
    times.
    """
    apart = (torch.arange(size)[:, None] - torch.arange(size)).abs()
    rates = rate * (apart == 1).double()
    return cls(rates - torch.diag(rates.sum(1)), Linear())


@fault(
    "durations are not limited (such as to 690 over the slowest exit rate)",
    walk,
    within=matrix_exponential.MatrixExponential,
)
def long_durations_are_clamped_in_a_slowly_mixing_chain(forward, self, sigma):
    return forward(sigma.clamp_max(690 / 1500))


@fault("the uniformised series has a term for every jump", RateMatrix, build=walk)
def the_series_of_the_matrix_exponential_has_only_100_terms(transition, self, s, t):
    mean = 3000 * elapsed(self.schedule, *span(s, t, self.device))
    jumps = torch.eye(SIZE).double() + self.matrix / 3000
    total = torch.zeros_like(jumps)
    term = torch.eye(SIZE).double()
    for k in range(100):
        total = total + term
        term = term @ jumps * mean / (k + 1)
    return total / total.sum(1, keepdim=True)


@fault("the series of a step has terms for the longest path between states")
def the_series_of_a_one_way_ring_ends_after_33_jumps(patch):
    patch.setattr(matrix_exponential, "blocks_of", lambda terms: 1)
    step = torch.eye(36)
    return RateMatrix(step.roll(1, 1) - step, Linear())


@fault("rates and transitions are those of one matrix", RateMatrix, build=walk)
def the_rate_matrix_differs_from_the_exponential_in_the_last_state(rate_matrix, self, t):
    rates = rate_matrix(t)
    rates[SIZE - 1, SIZE - 2] *= 1.5
    rates[SIZE - 1, SIZE - 1] *= 1.5
    return rates


@fault("small probabilities are positive and accurate", RateMatrix, build=walk)
def the_eigenvector_formula_returns_negative_small_probabilities(transition, self, s, t):
    values, vectors = torch.linalg.eigh(self.matrix)
    duration = elapsed(self.schedule, *span(s, t, self.device))
    return vectors * (values * duration).exp() @ vectors.T


@fault("indices of states are int64", RateMatrix, build=walk)
def state_indices_overflow_int8(likelihood, self, z, x, t):
    return likelihood(z.to(torch.int8).long() % 128, x, t)


@fault(
    "draws have the frequencies of the marginal, also for small probabilities",
    Uniform,
    300,
    Linear(),
)
def draws_use_cumulative_probabilities_in_half_precision(
    sample, self, x, t, generator=None, levels="independent"
):
    if levels == "balanced":
        return sample(x, t, generator, levels)
    self.check_inputs(x=x, t=t)
    reached = self.marginal(x, t.double()).half().cumsum(-1)
    u = rand(x.shape, generator, x.device).half()[..., None]
    return (u >= reached).sum(-1).clamp_max(self.vocab_size - 1)


@fault("the prior covers every state", Uniform, 300, Linear())
def prior_draws_are_reduced_modulo_128(sample_prior, self, shape, generator=None, device=None):
    return sample_prior(shape, generator, device) % 128


@fault("p(z_s|z_t) is normalised over all states", RateMatrix, build=walk)
def the_posterior_keeps_only_the_64_likeliest_states(posterior, self, p, z, t, s):
    whole = posterior(p, z, t, s)
    kept = whole.topk(min(SMALL, whole.shape[-1]), -1)
    cut = torch.zeros_like(whole).scatter(-1, kept.indices, kept.values)
    return cut / cut.sum(-1, keepdim=True)


@fault("token_likelihood has an entry for every token", Masked, 300, Linear())
def token_likelihoods_are_0_after_the_last_whole_chunk(token_likelihood, self, z, t):
    likelihood = token_likelihood(z, t)
    chunks = likelihood.shape[-1] // SMALL or 1
    whole = min(likelihood.shape[-1], chunks * SMALL)
    return torch.cat([likelihood[..., :whole], 0 * likelihood[..., whole:]], -1)


@fault(
    "q_t(.|p) is a sum over all tokens",
    Hierarchical,
    Tree([torch.arange(300) % 20], xi=0.9),
    Linear(),
)
def the_predictive_distribution_sums_over_the_first_128_tokens_only(predictive, self, p, t):
    kept = p * (torch.arange(self.vocab_size) < min(128, self.vocab_size))
    return predictive(kept / kept.sum(-1, keepdim=True).clamp_min(1e-300), t)


@fault("reverse rates are those of the chain at its size", Uniform, 300, Linear())
def the_reverse_rates_to_state_100_are_doubled(reverse_rate, self, p, z, t):
    rates = reverse_rate(p, z, t)
    return rates * torch.where(torch.arange(self.num_states) == 100, 2.0, 1.0)


@fault("the mask is reached from every token", Masked, 300, Linear())
def tokens_from_256_on_have_rate_0(rate_matrix, self, t):
    rates = rate_matrix(t)
    rates[256:-1] = 0
    return rates


@fault("the closed form of the bound holds for every token", Masked, 300, Linear())
def the_divergence_is_halved_for_tokens_above_200(weighted_divergence, self, logits, x, z, t):
    weight, divergence = weighted_divergence(logits, x, z, t)
    return weight, torch.where(x > SIZE, divergence / 2, divergence)


@fault("rates at 1,100 states are those at 10")
def rates_are_doubled_in_processes_of_more_than_1000_tokens(patch):
    class Broken(Uniform):
        def small_copy(self, vocab_size):
            raise TypeError("no reduction")

    def rate_matrix(self, t):
        return Uniform.rate_matrix(self, t) * (2.0 if self.vocab_size > 1000 else 1.0)

    Broken.rate_matrix = rate_matrix  # a class that overrides it alone is refused
    return Broken(1100, Linear())


@fault("parents are int64", Tree, [torch.arange(400) % 150])
def parent_indices_overflow_int8(between, self, lower, upper):
    edge = between(lower, upper)
    if edge.num_parents > 127:
        edge.parents = edge.parents.to(torch.int8).long() % edge.num_parents
    return edge


@fault("a state is in one level", Tree, [torch.arange(400) % 20], build=over)
def states_above_256_are_assigned_to_the_level_of_the_mask(level_of, self, z):
    return torch.where((z > 256) & (self.num_states > 300), self.depth, level_of(z))
