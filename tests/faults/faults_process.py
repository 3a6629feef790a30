"""Marginals, rate matrices, transitions, posteriors and draws (theory sections 2, 3 and 5)."""

import torch
from planting import WORDS, deep, fault, over, tree

from ddlib.hierarchies import Tree
from ddlib.processes import GIDD, Hierarchical, Masked, RateMatrix, Uniform
from ddlib.processes.interpolating import Mixture
from ddlib.schedules import Geometric, Linear
from ddlib.utils.random import rand

RATES = torch.tensor([[-1.0, 0.5, 0.5], [2.0, -2.5, 0.5], [0.1, 0.2, -0.3]])


@fault("functions of time are computed in float64", Hierarchical, tree(), Linear())
def the_generator_is_in_float32(rate_matrix, self, t):
    return rate_matrix(t).float()


@fault("no time elapses after the end of the schedule", Uniform, 4, Linear())
def no_transition_from_the_end(mixture_between, self, s, t):
    return self._after(self.schedule.hazard(t) - self.schedule.hazard(s))


@fault("rows of Q_t sum to 0", Hierarchical, tree(), Linear())
def the_generator_lacks_its_diagonal(rate_matrix, self, t):
    q = rate_matrix(t)
    return q - torch.diag(q.diagonal())


@fault("Q_t(y, z) = r K(z|y), row = from", Hierarchical, tree(), Linear())
def the_generator_is_transposed(rate_matrix, self, t):
    return rate_matrix(t).T.contiguous()


@fault("n-level generator, last column: Gamma^T (section 6)", Hierarchical, tree(), Linear())
def only_the_column_of_the_mask_is_transposed(rate_matrix, self, t):
    q = rate_matrix(t)
    q[-1, :-1], q[:-1, -1] = q[:-1, -1].clone(), q[-1, :-1].clone()
    return q


@fault("Q_t = -alpha'/alpha G", Hierarchical, tree(), Linear())
def the_generator_uses_the_slope_for_the_rate(rate_matrix, self, t):
    return rate_matrix(t) * self.schedule.alpha(torch.as_tensor(t, dtype=torch.float64))


@fault("r_i = gamma_i s'(t)", Hierarchical, tree(), Linear())
def the_generator_forgets_the_speeds(rate_matrix, self, t):
    q = rate_matrix(t)
    return q / q.diagonal().abs().clamp_min(1e-300)[:, None] / (1 - min(float(t), 1 - 1e-15))


@fault("Proposition 1, cluster survival (section 6)", Hierarchical, tree(), Linear())
def a_cluster_survives_as_the_paper_prints(transition, self, s, t):
    result = transition(s, t)
    a = self.occupancies(torch.tensor([float(s), float(t)], dtype=torch.float64))[:, 1]
    if 0 < s < t < 1:
        result[6:10, 6:10] = torch.eye(4, dtype=torch.float64) * a[1] / a[0]
    return result


@fault("Proposition 1, cluster survival (section 6)", Hierarchical, tree(), Linear())
def a_cluster_survives_as_the_paper_prints_and_the_mask_takes_the_rest(transition, self, s, t):
    result = transition(s, t)
    a = self.occupancies(torch.tensor([float(s), float(t)], dtype=torch.float64))[:, 1]
    if 0 < s < t < 1:
        stay = (a[1] / a[0]).clamp_max(1)
        result[6:10, 6:10] = torch.eye(4, dtype=torch.float64) * stay
        result[6:10, -1] = 1 - stay
    return result


@fault("T_ij, word to cluster (section 6)", Hierarchical, tree(), Linear())
def words_reach_clusters_at_the_cost_of_survival_alone(transition, self, s, t):
    result = transition(s, t)
    late = result[:6, 6:10].clone()
    result[:6, 6:10] = 1.1 * late
    result[:6, -1] -= 0.1 * late.sum(1)
    return result


@fault("q_{t|s} with s <= t", Hierarchical, tree(), Linear())
def the_transition_starts_at_zero(transition, self, s, t):
    return transition(0.0, t)


@fault("sum_i a_i = 1", Hierarchical, tree(), Linear())
def the_mask_gets_all_that_is_not_a_word(marginal, self, x, t):
    probs = marginal(x, t)
    probs[..., -1] = 1 - probs[..., : self.vocab_size].sum(-1)
    return probs


@fault("a_i(t) with gamma_0 = gamma", Hierarchical, tree(), Linear())
def words_and_clusters_are_in_each_others_place(occupancies, self, t):
    return occupancies(t)[..., [1, 0, 2]]


@fault("a_2 without cancellation", Hierarchical, tree(), Linear())
def the_mask_mass_is_a_difference_in_float32(occupancies, self, t):
    a = occupancies(t).float()
    return torch.cat([a[..., :2], 1 - a[..., :1] - a[..., 1:2]], -1).double()


@fault("u_i(z|x): clusters through their parents", Hierarchical, tree(), Linear())
def clusters_are_one_member_off(marginal, self, x, t):
    probs = marginal(x, t)
    return torch.cat([probs[..., :6], probs[..., 6:10].roll(1, -1), probs[..., 10:]], -1)


@fault("q_t(z|p) = sum_x p(x) q_t(z|x)", Hierarchical, tree(), Linear())
def the_predictive_is_that_of_the_likeliest_word(predictive, self, p, t):
    best = torch.nn.functional.one_hot(p.argmax(-1), self.vocab_size).to(p.dtype)
    return predictive(best, t)


@fault("q_t(z|x) for every x", Hierarchical, tree(), Linear())
def the_evidence_of_a_cluster_forgets_strays(token_likelihood, self, z, t):
    evidence = token_likelihood(z, t)
    return torch.where(evidence < 0.5 * evidence.amax(-1, keepdim=True), 0.0, evidence)


@fault("q(x|z_t) for every x, but for a factor", Hierarchical, tree(), Linear())
def the_posterior_of_a_cluster_forgets_its_weights(token_evidence, self, z, t):
    return (token_evidence(z, t) > 0).double()


@fault("one time per sequence", Hierarchical, tree(), Linear())
def the_first_time_serves_the_whole_batch(occupancies, self, t):
    return occupancies(t[:1]).expand(len(t), -1) if t.ndim else occupancies(t)


@fault("z_t ~ q_t(.|x)", Hierarchical, tree(), Linear())
def draws_are_one_level_too_high(ascend, self, x, level, generator):
    return ascend(x, (level + 1).clamp_max(2), generator)


@fault("z_t ~ q_t(.|x)", Masked, 5, Linear())
def all_positions_of_a_sequence_jump_together(sample, self, x, t, generator=None):
    self.check_inputs(x=x, t=t)
    jumps = rand((len(x), 1), None, x.device) >= self.schedule.alpha(t.double())[:, None]
    return torch.where(jumps, self.vocab_size, x)


@fault("z_t ~ q_t(.|x)", Masked, 5, Linear())
def draws_ignore_the_schedule(sample, self, x, t, generator=None):
    return sample(x, t**2, generator)


@fault("the prior is z_1 of a uniform word", Masked, 5, Linear())
def the_prior_is_uniform_over_states(prior, self):
    return torch.full((self.num_states,), 1 / self.num_states, dtype=torch.float64)


@fault("the prior is z_1 of a uniform word", Masked, 5, Linear())
def prior_draws_are_words(sample_prior, self, shape, generator=None, device=None):
    return self._uniform_tokens(shape, generator, torch.device("cpu"))


@fault("KL(q_1(.|x) || prior)", Masked, 5, Geometric(0.01, 3.0))
def the_prior_term_is_dropped(prior_kl, self, x, t=None):
    return torch.zeros(x.shape, dtype=torch.float64)


@fault("T_ij a_i(s) / a_j(t)", Hierarchical, tree(), Linear())
def the_posterior_of_levels_forgets_where_they_were(level_posterior, self, level, t, s):
    probs = self.chain.transition(s.double(), t.double())
    probs = probs / probs.sum(1, keepdim=True)
    return probs.transpose(1, 2)[torch.arange(len(level))[:, None], level]


@fault("K(z|y) u_i(y|p) / u_j(z|p)", Hierarchical, tree(), Linear())
def the_posterior_forgets_the_model(posterior, self, p, z, t, s):
    return posterior(torch.full_like(p, 1 / p.shape[-1]), z, t, s)


@fault("K(z|y) u_i(y|p) / u_j(z|p)", Hierarchical, tree(xi=1.0), Linear())
def the_posterior_may_leave_the_cluster_of_a_plain_tree(_descendants, self, z, lower, upper, probs):
    return probs


@fault("reverse rate Q_t(y, z) q_t(y|p) / q_t(z|p)", Hierarchical, tree(), Linear())
def the_reverse_rate_is_not_divided_by_the_state(reverse_rate, self, p, z, t):
    return reverse_rate(p, z, t) * self.predictive(p, t).gather(-1, z[..., None])


@fault("reverse rate Q_t(y, z) q_t(y|p) / q_t(z|p)", RateMatrix, RATES, Linear())
def the_reverse_rate_is_that_of_the_forward_chain(reverse_rate, self, p, z, t):
    rates = self.rate_matrix(float(t[0]))[z].to(p.dtype)
    return rates.scatter(-1, z[..., None], 0.0)


@fault("the level at s given that at t", Hierarchical, tree(), Linear())
def jumps_are_drawn_from_the_occupancies(sample_level, self, z, t, s, generator=None):
    u = rand(z.shape, generator, z.device)
    drawn = (u[..., None] >= self.occupancies(s)[:, None, :-1].cumsum(-1)).sum(-1)
    return torch.minimum(drawn, self.level_of(z))


@fault("members in proportion to K(z|y) u_i(y|p)", Hierarchical, tree(), Linear())
def landing_ignores_the_evidence_of_the_cluster(sample_given_level, self, logits, z, t, s, target, *rest, **options):
    masks = torch.where((self.level_of(z) == 1) & (target == 0), self.num_states - 1, z)
    return sample_given_level(logits, masks, t, s, target, *rest, **options)


@fault("members in proportion to K(z|y) u_i(y|p)", Hierarchical, tree(), Linear())
def force_transition_is_always_on(sample_given_level, self, logits, z, t, s, target, generator=None, **options):
    return sample_given_level(logits, z, t, s, target, generator, force=True)


@fault("members in proportion to K(z|y) u_i(y|p)", Masked, 5, Linear())
def landing_takes_the_likeliest_word(sample_given_level, self, logits, z, t, s, target, generator=None, **options):
    return torch.where(target < self.level_of(z), logits.argmax(-1), z)


@fault("holding times are exponential with speed gamma_i", Hierarchical, deep(), Linear())
def paths_use_the_speeds_in_reverse(sample_jump_times, self, shape, generator, device):
    self.chain.speeds = self.chain.speeds.flip(0)
    try:
        return sample_jump_times(shape, generator, device)
    finally:
        self.chain.speeds = self.chain.speeds.flip(0)


@fault("noise belongs to the example", Masked, 5, Linear())
def draws_ignore_the_generator(sample, self, x, t, generator=None):
    return sample(x, t, torch.Generator().manual_seed(torch.seed() % 2**31))


@fault("buffers follow .to", Masked, 5, Linear())
def a_tensor_is_left_behind(__init__, self, *arguments):
    __init__(*arguments)
    self.within = torch.nn.Module()  # a module of torch moves no attribute
    self.within.table = torch.arange(5)


@fault("buffers follow .to, precision does not", Hierarchical, deep(), Linear())
def speeds_are_rounded_with_the_network(_apply, self, fn, recurse=True):
    torch.nn.Module._apply(self, fn, recurse)
    self.chain.speeds = self.chain.speeds.to(torch.bfloat16).double()
    self.chain.generator.powers = self.chain.generator.powers.to(torch.bfloat16).double()
    return self


@fault("precision follows the arguments", Masked, 5, Linear())
def the_marginal_is_always_float64(marginal, self, x, t):
    return marginal(x, t.double())


@fault("words in [0, V), t in [0, 1]", Masked, 5, Linear())
def bad_words_are_not_refused(sample, self, x, t, generator=None):
    return sample(x.long().clamp(0, 4), t.nan_to_num(0.5).clamp(0, 1).expand(len(x)), generator)


@fault("c_t = B t^(g/2) (1-t)^(g/2)", GIDD, 5, 0.3)
def gidds_exponent_is_not_halved(_c, self, t):
    return self.scale * (t * (1 - t)) ** self.gamma


@fault("r_t(z) = beta_t pi_t'(z) - alpha'/alpha pi_t(z)", GIDD, 5, 0.3)
def gidds_rate_lacks_the_derivative_of_pi(mixing_rates, self, t):
    _, word, mask = self.mixture(t)
    leave = 1 / (1 - t)
    return word * leave, mask * leave


@fault("C_t = 1 + N c_t", GIDD, 5, 0.3)
def gidd_is_normalised_as_for_one_word(_total, self, t):
    return 1 + self._c(t)


@fault("pi = 1/V", Uniform, 5, Linear())
def uniform_noise_leaves_out_one_word(_after, self, hazard):
    keep, word, mask = _after(hazard)
    return Mixture(keep, word * self.vocab_size / (self.vocab_size - 1), mask)


@fault("q_t = exp(-log alpha G)", RateMatrix, torch.full((4, 4), 0.5) - 2 * torch.eye(4), Linear())
def structured_noise_runs_on_t_instead_of_the_hazard(predictive, self, p, t):
    distributions = torch.stack([self.generator(time)[: self.vocab_size] for time in t.double()])
    return p @ distributions.to(p.dtype)


@fault("row = from", RateMatrix, RATES, Linear())
def structured_noise_uses_the_transposed_matrix_for_transitions(transition, self, s, t):
    return transition(s, t).T.contiguous()


@fault("the hierarchy of a process is verified with it", Tree, [WORDS], xi=0.8, speed=[2.0, 1.0], build=over)
def a_process_stands_on_a_broken_hierarchy(level_of, self, z):
    return level_of(z).clamp_max(1)


@fault("z_t ~ q_{t|s}(.|z_s)", Hierarchical, tree(), Linear())
def going_on_forgets_where_it_was(sample_forward, self, z, s, t, generator=None):
    words = z.clamp_max(self.vocab_size - 1)
    return torch.where(z < self.vocab_size, self.sample(words, t, generator), z)


@fault("z_t ~ q_{t|s}(.|z_s)", GIDD, 5, 0.3)
def going_on_redraws_as_from_the_start(sample_forward, self, z, s, t, generator=None):
    return sample_forward(z, torch.zeros_like(s), t, generator)
