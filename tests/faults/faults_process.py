"""Marginals, rate matrices, transitions, posteriors and draws (theory sections 2, 3 and 5)."""

import torch
from planting import WORDS, deep, fault, over, tree

from ddlib.hierarchies import Tree
from ddlib.processes import GIDD, Hierarchical, Masked, RateMatrix, Uniform, unsqueeze_times
from ddlib.processes.broadcasting import gather_columns, products_at, rows_at
from ddlib.processes.interpolating import Mixture
from ddlib.schedules import Geometric, Linear
from ddlib.utils.random import rand

RATES = torch.tensor([[-1.0, 0.5, 0.5], [2.0, -2.5, 0.5], [0.1, 0.2, -0.3]])


@fault("functions of time are computed in float64", Hierarchical, tree(), Linear())
def the_rate_matrix_is_in_float32(rate_matrix, self, t):
    return rate_matrix(t).float()


@fault("the transition from time 1 is the identity", Uniform, 4, Linear())
def the_transition_from_time_1_is_nan(mixture_between, self, s, t):
    return self._after(self.schedule.hazard(t) - self.schedule.hazard(s))


@fault("rows of Q_t sum to 0", Hierarchical, tree(), Linear())
def the_diagonal_of_the_rate_matrix_is_0(rate_matrix, self, t):
    q = rate_matrix(t)
    return q - torch.diag(q.diagonal())


@fault("Q_t(y, z) = r K(z|y), row = from", Hierarchical, tree(), Linear())
def the_rate_matrix_is_transposed(rate_matrix, self, t):
    return rate_matrix(t).T.contiguous()


@fault("n-level generator, last column: Gamma^T (section 6)", Hierarchical, tree(), Linear())
def the_row_and_the_column_of_the_mask_are_exchanged(rate_matrix, self, t):
    q = rate_matrix(t)
    q[-1, :-1], q[:-1, -1] = q[:-1, -1].clone(), q[-1, :-1].clone()
    return q


@fault("Q_t = -alpha'/alpha G", Hierarchical, tree(), Linear())
def the_rate_matrix_is_not_divided_by_alpha(rate_matrix, self, t):
    return rate_matrix(t) * self.schedule.alpha(torch.as_tensor(t, dtype=torch.float64))


@fault("r_i = gamma_i s'(t)", Hierarchical, tree(), Linear())
def the_rate_matrix_omits_the_speeds(rate_matrix, self, t):
    q = rate_matrix(t)
    return q / q.diagonal().abs().clamp_min(1e-300)[:, None] / (1 - min(float(t), 1 - 1e-15))


@fault("Proposition 1, cluster survival (section 6)", Hierarchical, tree(), Linear())
def the_survival_of_a_cluster_follows_the_printed_formula(transition, self, s, t):
    result = transition(s, t)
    a = self.occupancies(torch.tensor([float(s), float(t)], dtype=torch.float64))[:, 1]
    if 0 < s < t < 1:
        result[6:10, 6:10] = torch.eye(4, dtype=torch.float64) * a[1] / a[0]
    return result


@fault("Proposition 1, cluster survival (section 6)", Hierarchical, tree(), Linear())
def the_survival_of_a_cluster_is_the_printed_one_with_normalised_rows(transition, self, s, t):
    result = transition(s, t)
    a = self.occupancies(torch.tensor([float(s), float(t)], dtype=torch.float64))[:, 1]
    if 0 < s < t < 1:
        stay = (a[1] / a[0]).clamp_max(1)
        result[6:10, 6:10] = torch.eye(4, dtype=torch.float64) * stay
        result[6:10, -1] = 1 - stay
    return result


@fault("T_ij from token to cluster (section 6)", Hierarchical, tree(), Linear())
def transition_probabilities_from_tokens_to_clusters_are_a_tenth_too_large(transition, self, s, t):
    result = transition(s, t)
    late = result[:6, 6:10].clone()
    result[:6, 6:10] = 1.1 * late
    result[:6, -1] -= 0.1 * late.sum(1)
    return result


@fault("the exit rate is the sum of the reverse rates", GIDD, 4, 0.3)
def the_exit_rate_is_a_tenth_too_large(exit_rate, self, z, t, logits, sharpen=None):
    return 1.1 * exit_rate(z, t, logits)


@fault("a mask may be any token", Hierarchical, tree(), Linear())
def clusters_are_reached_from_all_tokens_and_the_mask_is_not(reachable_from_all_tokens, self, z):
    return ~reachable_from_all_tokens(z)


@fault("q_{t|s} with s <= t", Hierarchical, tree(), Linear())
def the_transition_starts_at_time_0(transition, self, s, t):
    return transition(0.0, t)


@fault("sum_i a_i = 1", Hierarchical, tree(), Linear())
def the_marginal_of_the_mask_includes_the_clusters(marginal, self, x, t):
    probs = marginal(x, t)
    probs[..., -1] = 1 - probs[..., : self.vocab_size].sum(-1)
    return probs


@fault("a_i(t) with gamma_0 = gamma", Hierarchical, tree(), Linear())
def the_occupancies_of_tokens_and_clusters_are_exchanged(occupancies, self, t):
    return occupancies(t)[..., [1, 0, 2]]


@fault("a_2 is computed without cancellation", Hierarchical, tree(), Linear())
def the_occupancy_of_the_mask_is_a_difference_in_float32(occupancies, self, t):
    a = occupancies(t).float()
    return torch.cat([a[..., :2], 1 - a[..., :1] - a[..., 1:2]], -1).double()


@fault("u_i(z|x): clusters through their parents", Hierarchical, tree(), Linear())
def the_marginals_of_clusters_are_shifted_by_one(marginal, self, x, t):
    probs = marginal(x, t)
    return torch.cat([probs[..., :6], probs[..., 6:10].roll(1, -1), probs[..., 10:]], -1)


@fault("q_t(z|p) = sum_x p(x) q_t(z|x)", Hierarchical, tree(), Linear())
def the_predictive_distribution_is_that_of_the_likeliest_token(predictive, self, p, t):
    best = torch.nn.functional.one_hot(p.argmax(-1), self.vocab_size).to(p.dtype)
    return predictive(best, t)


@fault("q_t(z|x) for every x", Hierarchical, tree(), Linear())
def token_likelihoods_below_half_of_the_largest_are_set_to_0(token_likelihood, self, z, t):
    evidence = token_likelihood(z, t)
    return torch.where(evidence < 0.5 * evidence.amax(-1, keepdim=True), 0.0, evidence)


@fault("q(x|z_t) for every x, up to a factor", Hierarchical, tree(), Linear())
def the_token_evidence_is_1_wherever_it_is_positive(token_evidence, self, z, t):
    return (token_evidence(z, t) > 0).double()


@fault("each batch row has its own time", Hierarchical, tree(), Linear())
def all_batch_rows_have_the_occupancies_of_the_first_time(occupancies, self, t):
    return occupancies(t[:1]).expand(*t.shape, -1) if t.ndim else occupancies(t)


@fault("z_t ~ q_t(.|x)", Hierarchical, tree(), Linear())
def draws_are_one_level_too_high(ascend, self, x, level, generator):
    return ascend(x, (level + 1).clamp_max(2), generator)


@fault("z_t ~ q_t(.|x)", Masked, 5, Linear())
def all_positions_of_a_sequence_are_masked_together(
    sample, self, x, t, generator=None, levels="independent"
):
    if levels == "balanced":
        return sample(x, t, generator, levels)
    self.check_inputs(x=x, t=t)
    jumps = rand((len(x), 1), generator, x.device) >= unsqueeze_times(
        self.schedule.alpha(t.double())
    )
    return torch.where(jumps, self.vocab_size, x)


@fault("z_t ~ q_t(.|x)", Masked, 5, Linear())
def draws_use_the_square_of_the_time(sample, self, x, t, generator=None, levels="independent"):
    return sample(x, t**2, generator, levels)


@fault("the prior is the distribution of z_1 of a uniform token", Masked, 5, Linear())
def the_prior_is_uniform_over_states(prior, self):
    return torch.full((self.num_states,), 1 / self.num_states, dtype=torch.float64)


@fault("the prior is the distribution of z_1 of a uniform token", Masked, 5, Linear())
def prior_draws_are_tokens(sample_prior, self, shape, generator=None, device=None):
    return self._uniform_tokens(shape, generator, torch.device("cpu"))


@fault("KL(q_1(.|x) || prior)", Masked, 5, Geometric(0.01, 3.0))
def the_prior_kl_is_0(prior_kl, self, x, t=None):
    return torch.zeros(x.shape, dtype=torch.float64)


@fault("T_ij a_i(s) / a_j(t)", Hierarchical, tree(), Linear())
def the_level_posterior_omits_the_occupancies(level_posterior, self, level, t, s, lift=None):
    if lift is not None:
        return level_posterior(level, t, s, lift)
    probs = self.chain.transition(s.double(), t.double())
    return gather_columns(probs / probs.sum(-2, keepdim=True), level)


@fault("K(z|y) u_i(y|p) / u_j(z|p)", Hierarchical, tree(), Linear())
def the_posterior_replaces_the_model_by_a_uniform_distribution(posterior, self, p, z, t, s):
    return posterior(torch.full_like(p, 1 / p.shape[-1]), z, t, s)


@fault("K(z|y) u_i(y|p) / u_j(z|p)", Hierarchical, tree(xi=1.0), Linear())
def the_posterior_is_not_restricted_to_the_cluster_of_z(_descendants, self, z, lower, upper, probs):
    return probs


@fault("reverse rate Q_t(y, z) q_t(y|p) / q_t(z|p)", Hierarchical, tree(), Linear())
def the_reverse_rate_is_not_divided_by_the_marginal_of_z(reverse_rate, self, p, z, t):
    return reverse_rate(p, z, t) * self.predictive(p, t).gather(-1, z[..., None])


@fault("reverse rate Q_t(y, z) q_t(y|p) / q_t(z|p)", RateMatrix, RATES, Linear())
def the_reverse_rate_is_the_rate_of_the_forward_process(reverse_rate, self, p, z, t):
    rates = rows_at(self.rate_matrix, z, t).to(p.dtype)
    return rates.scatter(-1, z[..., None], 0.0)


@fault(
    "the level at s follows its distribution given the level at t", Hierarchical, tree(), Linear()
)
def the_levels_at_s_are_drawn_from_the_occupancies(
    sample_level, self, z, t, s, generator=None, lift=None
):
    if lift is not None:
        return sample_level(z, t, s, generator, lift)
    u = rand(z.shape, generator, z.device)
    drawn = (u[..., None] >= unsqueeze_times(self.occupancies(s), 1)[..., :-1].cumsum(-1)).sum(-1)
    return torch.minimum(drawn, self.level_of(z))


@fault("states below z are drawn in proportion to K(z|y) u_i(y|p)", Hierarchical, tree(), Linear())
def tokens_below_a_cluster_are_drawn_as_if_below_the_mask(
    sample_given_level, self, logits, z, t, s, target, *rest, **options
):
    masks = torch.where((self.level_of(z) == 1) & (target == 0), self.num_states - 1, z)
    return sample_given_level(logits, masks, t, s, target, *rest, **options)


@fault("states below z are drawn in proportion to K(z|y) u_i(y|p)", Hierarchical, tree(), Linear())
def sample_given_level_sets_force_to_true(
    sample_given_level, self, logits, z, t, s, target, generator=None, **options
):
    return sample_given_level(logits, z, t, s, target, generator, force=True)


@fault("states below z are drawn in proportion to K(z|y) u_i(y|p)", Masked, 5, Linear())
def sample_given_level_takes_the_likeliest_token(
    sample_given_level, self, logits, z, t, s, target, generator=None, **options
):
    target = self.sample_level(z, t, s, generator) if target is None else target
    return torch.where(target < self.level_of(z), logits.argmax(-1), z)


@fault("holding times are exponential with speed gamma_i", Hierarchical, deep(), Linear())
def jump_times_use_the_speeds_in_reverse_order(sample_jump_times, self, shape, generator, device):
    self.chain.speeds = self.chain.speeds.flip(0)
    try:
        return sample_jump_times(shape, generator, device)
    finally:
        self.chain.speeds = self.chain.speeds.flip(0)


@fault("all draws use the given generator", Masked, 5, Linear())
def draws_ignore_the_generator(sample, self, x, t, generator=None, levels="independent"):
    return sample(x, t, torch.Generator().manual_seed(torch.seed() % 2**31), levels)


@fault(".to moves all tensors", Masked, 5, Linear())
def a_tensor_attribute_of_a_submodule_is_not_moved_by_to(__init__, self, *arguments):
    __init__(*arguments)
    self.within = torch.nn.Module()  # its ``to`` moves no plain attributes
    self.within.table = torch.arange(5)


@fault(".to moves tensors and keeps their precision", Hierarchical, deep(), Linear())
def moving_the_process_rounds_the_speeds_to_bfloat16(_apply, self, fn, recurse=True):
    torch.nn.Module._apply(self, fn, recurse)
    self.chain.speeds = self.chain.speeds.to(torch.bfloat16).double()
    self.chain.generator.powers = self.chain.generator.powers.to(torch.bfloat16).double()
    return self


@fault("results have the precision of the arguments", Masked, 5, Linear())
def the_marginal_is_always_float64(marginal, self, x, t):
    return marginal(x, t.double())


@fault("tokens are in [0, V), times in [0, 1]", Masked, 5, Linear())
def invalid_tokens_and_times_are_not_rejected(
    sample, self, x, t, generator=None, levels="independent"
):
    t = t.nan_to_num(0.5).clamp(0, 1)
    return sample(x.long().clamp(0, 4), t if t.ndim == 2 else t.expand(len(x)), generator, levels)


@fault("c_t = B t^(g/2) (1-t)^(g/2)", GIDD, 5, 0.3)
def the_exponent_of_gidd_is_not_halved(_c, self, t):
    return self.scale * (t * (1 - t)) ** self.gamma


@fault("r_t(z) = beta_t pi_t'(z) - alpha'/alpha pi_t(z)", GIDD, 5, 0.3)
def the_rates_of_gidd_omit_the_derivative_of_pi(mixing_rates, self, t):
    _, word, mask = self.mixture(t)
    leave = 1 / (1 - t)
    return word * leave, mask * leave


@fault("C_t = 1 + N c_t", GIDD, 5, 0.3)
def the_normalisation_of_gidd_omits_the_vocabulary_size(_total, self, t):
    return 1 + self._c(t)


@fault("pi = 1/V", Uniform, 5, Linear())
def the_probability_of_uniform_noise_is_divided_by_v_minus_1(_after, self, hazard):
    keep, word, mask = _after(hazard)
    return Mixture(keep, word * self.vocab_size / (self.vocab_size - 1), mask)


@fault("q_t = exp(-log alpha G)", RateMatrix, torch.full((4, 4), 0.5) - 2 * torch.eye(4), Linear())
def the_matrix_exponential_is_evaluated_at_t_in_place_of_the_hazard(predictive, self, p, t):
    return products_at(p, lambda time: self.exponential(time)[: self.vocab_size], t)


@fault("rows are the states at s, columns those at t", RateMatrix, RATES, Linear())
def the_transition_matrix_is_transposed(transition, self, s, t):
    return transition(s, t).T.contiguous()


@fault(
    "the hierarchy of a process is verified with it",
    Tree,
    [WORDS],
    xi=0.8,
    speed=[2.0, 1.0],
    build=over,
)
def the_hierarchy_of_a_process_assigns_the_mask_to_level_1(level_of, self, z):
    return level_of(z).clamp_max(1)


@fault("z_t ~ q_{t|s}(.|z_s)", Hierarchical, tree(), Linear())
def sample_forward_noises_tokens_from_time_0(sample_forward, self, z, s, t, generator=None):
    words = z.clamp_max(self.vocab_size - 1)
    return torch.where(z < self.vocab_size, self.sample(words, t, generator), z)


@fault("z_t ~ q_{t|s}(.|z_s)", GIDD, 5, 0.3)
def sample_forward_replaces_s_by_0(sample_forward, self, z, s, t, generator=None):
    return sample_forward(z, torch.zeros_like(s), t, generator)
