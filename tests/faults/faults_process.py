"""Theory sections 2, 3 and 5: marginals, generators, transitions, posteriors, draws."""

import torch
from planting import deep, fault, hierarchical, tree

import ddlib as dd
from ddlib.processes import GIDD, Hierarchical, Masked, RateMatrix, Uniform
from ddlib.processes.interpolating import Mixture
from ddlib.schedules import Geometric, Linear
from ddlib.utils.random import rand


@fault("functions of time are computed in float64")
def the_generator_is_in_float32(patch):
    class Broken(Hierarchical):
        def rate_matrix(self, t):
            return super().rate_matrix(t).float()

    return hierarchical(Broken)


@fault("no time passes on a clock that has run out")
def no_transition_from_the_end(patch):
    class Broken(Uniform):
        def mixture_between(self, s, t):
            return self._after(self.schedule.hazard(t) - self.schedule.hazard(s))

    return Broken(4, Linear())


@fault("rows of Q_t sum to 0")
def the_generator_lacks_its_diagonal(patch):
    class Broken(Hierarchical):
        def rate_matrix(self, t):
            q = super().rate_matrix(t)
            return q - torch.diag(q.diagonal())

    return hierarchical(Broken)


@fault("Q_t(y, z) = r K(z|y), row = from")
def the_generator_is_transposed(patch):
    class Broken(Hierarchical):
        def rate_matrix(self, t):
            return super().rate_matrix(t).T.contiguous()

    return hierarchical(Broken)


@fault("n-level generator, last column: Gamma^T (section 6)")
def only_the_column_of_the_mask_is_transposed(patch):
    class Broken(Hierarchical):
        def rate_matrix(self, t):
            q = super().rate_matrix(t)
            q[-1, :-1], q[:-1, -1] = q[:-1, -1].clone(), q[-1, :-1].clone()
            return q

    return hierarchical(Broken)


@fault("Q_t = -alpha'/alpha G")
def the_generator_uses_the_slope_for_the_rate(patch):
    class Broken(Hierarchical):
        def rate_matrix(self, t):
            return super().rate_matrix(t) * self.schedule.alpha(torch.as_tensor(t, dtype=torch.float64))

    return hierarchical(Broken)


@fault("r_i = gamma_i s'(t)")
def the_generator_forgets_the_speeds(patch):
    class Broken(Hierarchical):
        def rate_matrix(self, t):
            q = super().rate_matrix(t)
            return q / q.diagonal().abs().clamp_min(1e-300)[:, None] / (1 - min(float(t), 1 - 1e-15))

    return hierarchical(Broken)


@fault("Proposition 1, cluster survival (section 6)")
def a_cluster_survives_as_the_paper_prints(patch):
    class Broken(Hierarchical):
        def transition(self, s, t):
            result = super().transition(s, t)
            a = self.occupancies(torch.tensor([float(s), float(t)], dtype=torch.float64))[:, 1]
            if 0 < s < t < 1:
                result[6:10, 6:10] = torch.eye(4, dtype=torch.float64) * a[1] / a[0]
            return result

    return hierarchical(Broken)


@fault("Proposition 1, cluster survival (section 6)")
def a_cluster_survives_as_the_paper_prints_and_the_mask_takes_the_rest(patch):
    class Broken(Hierarchical):
        def transition(self, s, t):
            result = super().transition(s, t)
            a = self.occupancies(torch.tensor([float(s), float(t)], dtype=torch.float64))[:, 1]
            if 0 < s < t < 1:
                stay = (a[1] / a[0]).clamp_max(1)
                result[6:10, 6:10] = torch.eye(4, dtype=torch.float64) * stay
                result[6:10, -1] = 1 - stay
            return result

    return hierarchical(Broken)


@fault("T_ij, word to cluster (section 6)")
def words_reach_clusters_at_the_cost_of_survival_alone(patch):
    class Broken(Hierarchical):
        def transition(self, s, t):
            result = super().transition(s, t)
            late = result[:6, 6:10].clone()
            result[:6, 6:10] = 1.1 * late
            result[:6, -1] -= 0.1 * late.sum(1)
            return result

    return hierarchical(Broken)


@fault("q_{t|s} with s <= t")
def the_transition_starts_at_zero(patch):
    class Broken(Hierarchical):
        def transition(self, s, t):
            return super().transition(0.0, t)

    return hierarchical(Broken)


@fault("sum_i a_i = 1")
def the_mask_gets_all_that_is_not_a_word(patch):
    class Broken(Hierarchical):
        def marginal(self, x, t):
            law = super().marginal(x, t)
            law[..., -1] = 1 - law[..., : self.vocab_size].sum(-1)
            return law

    return hierarchical(Broken)


@fault("a_i(t) with gamma_0 = gamma")
def words_and_clusters_are_in_each_others_place(patch):
    class Broken(Hierarchical):
        def occupancies(self, t):
            return super().occupancies(t)[..., [1, 0, 2]]

    return hierarchical(Broken)


@fault("a_2 without cancellation")
def the_mask_mass_is_a_difference_in_float32(patch):
    class Broken(Hierarchical):
        def occupancies(self, t):
            a = super().occupancies(t).float()
            return torch.cat([a[..., :2], 1 - a[..., :1] - a[..., 1:2]], -1).double()

    return hierarchical(Broken)


@fault("u_i(z|x): clusters through their parents")
def clusters_are_one_member_off(patch):
    class Broken(Hierarchical):
        def marginal(self, x, t):
            law = super().marginal(x, t)
            return torch.cat([law[..., :6], law[..., 6:10].roll(1, -1), law[..., 10:]], -1)

    return hierarchical(Broken)


@fault("q_t(z|p) = sum_x p(x) q_t(z|x)")
def the_predictive_is_that_of_the_likeliest_word(patch):
    class Broken(Hierarchical):
        def predictive(self, p, t):
            best = torch.nn.functional.one_hot(p.argmax(-1), self.vocab_size).to(p.dtype)
            return super().predictive(best, t)

    return hierarchical(Broken)


@fault("q_t(z|x) for every x")
def the_evidence_of_a_cluster_forgets_strays(patch):
    class Broken(Hierarchical):
        def token_likelihood(self, z, t):
            evidence = super().token_likelihood(z, t)
            return torch.where(evidence < 0.5 * evidence.amax(-1, keepdim=True), 0.0, evidence)

    return hierarchical(Broken)


@fault("one time per sequence")
def the_first_time_serves_the_whole_batch(patch):
    class Broken(Hierarchical):
        def occupancies(self, t):
            return super().occupancies(t[:1]).expand(len(t), -1) if t.ndim else super().occupancies(t)

    return hierarchical(Broken)


@fault("z_t ~ q_t(.|x)")
def draws_are_one_level_too_high(patch):
    class Broken(Hierarchical):
        def ascend(self, x, level, generator):
            return super().ascend(x, (level + 1).clamp_max(2), generator)

    return hierarchical(Broken)


@fault("z_t ~ q_t(.|x)")
def all_positions_of_a_sequence_jump_together(patch):
    class Broken(Masked):
        def sample(self, x, t, generator=None):
            self.check_inputs(x=x, t=t)
            jumps = rand((len(x), 1), None, x.device) >= self.schedule.alpha(t.double())[:, None]
            return torch.where(jumps, self.vocab_size, x)

    return Broken(5, Linear())


@fault("z_t ~ q_t(.|x)")
def draws_ignore_the_clock(patch):
    class Broken(Masked):
        def sample(self, x, t, generator=None):
            return super().sample(x, t**2, generator)

    return Broken(5, Linear())


@fault("the prior is z_1 of a uniform word")
def the_prior_is_uniform_over_states(patch):
    class Broken(Masked):
        def prior(self):
            return torch.full((self.num_states,), 1 / self.num_states, dtype=torch.float64)

    return Broken(5, Linear())


@fault("the prior is z_1 of a uniform word")
def prior_draws_are_words(patch):
    class Broken(Masked):
        def sample_prior(self, shape, generator=None, device=None):
            return self._uniform_tokens(shape, generator, torch.device("cpu"))

    return Broken(5, Linear())


@fault("KL(q_1(.|x) || prior)")
def the_prior_term_is_dropped(patch):
    class Broken(Masked):
        def prior_kl(self, x, t=None):
            return torch.zeros(x.shape, dtype=torch.float64)

    return Broken(5, Geometric(0.01, 3.0))


@fault("T_ij a_i(s) / a_j(t)")
def the_posterior_of_levels_forgets_where_they_were(patch):
    class Broken(Hierarchical):
        def level_posterior(self, level, t, s):
            law = self.chain.transition(self._duration(s, t))
            law = law / law.sum(1, keepdim=True)
            return law.transpose(1, 2)[torch.arange(len(level))[:, None], level]

    return hierarchical(Broken)


@fault("K(z|y) u_i(y|p) / u_j(z|p)")
def the_posterior_forgets_the_model(patch):
    class Broken(Hierarchical):
        def posterior(self, p, z, t, s):
            return super().posterior(torch.full_like(p, 1 / p.shape[-1]), z, t, s)

    return hierarchical(Broken)


@fault("K(z|y) u_i(y|p) / u_j(z|p)")
def the_posterior_may_leave_the_cluster_of_a_plain_tree(patch):
    class Broken(Hierarchical):
        def _descendants(self, z, lower, upper, law):
            return law

    return hierarchical(Broken, tree(xi=1.0))


@fault("reverse rate Q_t(y, z) q_t(y|p) / q_t(z|p)")
def the_reverse_rate_is_not_divided_by_the_state(patch):
    class Broken(Hierarchical):
        def reverse_rate(self, p, z, t):
            return super().reverse_rate(p, z, t) * self.predictive(p, t).gather(-1, z[..., None])

    return hierarchical(Broken)


@fault("reverse rate Q_t(y, z) q_t(y|p) / q_t(z|p)")
def the_reverse_rate_is_that_of_the_forward_chain(patch):
    class Broken(RateMatrix):
        def reverse_rate(self, p, z, t):
            rates = self.rate_matrix(float(t[0]))[z].to(p.dtype)
            return rates.scatter(-1, z[..., None], 0.0)

    return Broken(torch.tensor([[-1.0, 0.5, 0.5], [2.0, -2.5, 0.5], [0.1, 0.2, -0.3]]), Linear())


@fault("the level at s given that at t")
def jumps_are_drawn_from_the_occupancies(patch):
    class Broken(Hierarchical):
        def sample_level(self, z, t, s, generator=None):
            u = rand(z.shape, generator, z.device)
            drawn = (u[..., None] >= self.occupancies(s)[:, None, :-1].cumsum(-1)).sum(-1)
            return torch.minimum(drawn, self.level_of(z))

    return hierarchical(Broken)


@fault("members in proportion to K(z|y) u_i(y|p)")
def landing_ignores_the_evidence_of_the_cluster(patch):
    class Broken(Hierarchical):
        def sample_given_level(self, logits, z, t, s, target, generator=None, **options):
            masks = torch.where((self.level_of(z) == 1) & (target == 0), self.num_states - 1, z)
            return super().sample_given_level(logits, masks, t, s, target, generator, **options)

    return hierarchical(Broken)


@fault("members in proportion to K(z|y) u_i(y|p)")
def force_transition_is_always_on(patch):
    class Broken(Hierarchical):
        def sample_given_level(self, logits, z, t, s, target, generator=None, **options):
            return super().sample_given_level(logits, z, t, s, target, generator, force=True)

    return hierarchical(Broken)


@fault("members in proportion to K(z|y) u_i(y|p)")
def landing_takes_the_likeliest_word(patch):
    class Broken(Masked):
        def sample_given_level(self, logits, z, t, s, target, generator=None, **options):
            return torch.where(target < self.level_of(z), logits.argmax(-1), z)

    return Broken(5, Linear())


@fault("holding times are exponential with speed gamma_i")
def paths_use_the_speeds_in_reverse(patch):
    class Broken(Hierarchical):
        def sample_jump_times(self, shape, generator, device):
            self.chain.speeds = self.chain.speeds.flip(0)
            try:
                return super().sample_jump_times(shape, generator, device)
            finally:
                self.chain.speeds = self.chain.speeds.flip(0)

    return hierarchical(Broken, deep())


@fault("noise belongs to the example")
def draws_ignore_the_generator(patch):
    class Broken(Masked):
        def sample(self, x, t, generator=None):
            return super().sample(x, t, torch.Generator().manual_seed(torch.seed() % 2**31))

    return Broken(5, Linear())


@fault("buffers follow .to")
def a_tensor_is_left_behind(patch):
    class Broken(Masked):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.table = torch.arange(5)

    return Broken(5, Linear())


@fault("buffers follow .to, precision does not")
def speeds_are_rounded_with_the_network(patch):
    class Broken(Hierarchical):
        def _apply(self, fn, recurse=True):
            torch.nn.Module._apply(self, fn, recurse)
            self.chain.speeds = self.chain.speeds.to(torch.bfloat16).double()
            self.chain.generator.powers = self.chain.generator.powers.to(torch.bfloat16).double()
            return self

    return hierarchical(Broken, deep())


@fault("precision follows the arguments")
def the_marginal_is_always_float64(patch):
    class Broken(Masked):
        def marginal(self, x, t):
            return super().marginal(x, t.double())

    return Broken(5, Linear())


@fault("words in [0, V), t in [0, 1]")
def bad_words_are_not_refused(patch):
    class Broken(Masked):
        def sample(self, x, t, generator=None):
            return super().sample(x.long().clamp(0, 4), t.nan_to_num(0.5).clamp(0, 1).expand(len(x)), generator)

    return Broken(5, Linear())


@fault("c_t = B t^(g/2) (1-t)^(g/2)")
def gidds_exponent_is_not_halved(patch):
    class Broken(GIDD):
        def _c(self, t):
            return self.scale * (t * (1 - t)) ** self.gamma

    return Broken(5, 0.3)


@fault("r_t(z) = beta_t pi_t'(z) - alpha'/alpha pi_t(z)")
def gidds_rate_lacks_the_derivative_of_pi(patch):
    class Broken(GIDD):
        def mixing_rates(self, t):
            _, word, mask = self.mixture(t)
            leave = 1 / (1 - t)
            return word * leave, mask * leave

    return Broken(5, 0.3)


@fault("C_t = 1 + N c_t")
def gidd_is_normalised_as_for_one_word(patch):
    class Broken(GIDD):
        def _total(self, t):
            return 1 + self._c(t)

    return Broken(5, 0.3)


@fault("pi = 1/V")
def uniform_noise_leaves_out_one_word(patch):
    class Broken(Uniform):
        def _after(self, hazard):
            keep, word, mask = super()._after(hazard)
            return Mixture(keep, word * self.vocab_size / (self.vocab_size - 1), mask)

    return Broken(5, Linear())


@fault("q_t = exp(-log alpha G)")
def structured_noise_runs_on_t_instead_of_the_clock(patch):
    class Broken(RateMatrix):
        def predictive(self, p, t):
            laws = torch.stack([self.generator(time)[: self.vocab_size] for time in t.double()])
            return p @ laws.to(p.dtype)

    return Broken(torch.full((4, 4), 0.5) - 2 * torch.eye(4), Linear())


@fault("row = from")
def structured_noise_uses_the_transposed_matrix_for_transitions(patch):
    class Broken(RateMatrix):
        def transition(self, s, t):
            return super().transition(s, t).T.contiguous()

    return Broken(torch.tensor([[-1.0, 0.5, 0.5], [2.0, -2.5, 0.5], [0.1, 0.2, -0.3]]), Linear())


@fault("the hierarchy of a process is verified with it")
def a_process_stands_on_a_broken_hierarchy(patch):
    class Broken(dd.hierarchies.Tree):
        def level_of(self, z):
            return super().level_of(z).clamp_max(1)

    return hierarchical(Hierarchical, tree(Broken))


@fault("z_t ~ q_{t|s}(.|z_s)")
def going_on_forgets_where_it_was(patch):
    class Broken(Hierarchical):
        def sample_forward(self, z, s, t, generator=None):
            words = z.clamp_max(self.vocab_size - 1)
            return torch.where(z < self.vocab_size, self.sample(words, t, generator), z)

    return hierarchical(Broken)


@fault("z_t ~ q_{t|s}(.|z_s)")
def going_on_redraws_as_from_the_start(patch):
    class Broken(GIDD):
        def sample_forward(self, z, s, t, generator=None):
            return super().sample_forward(z, torch.zeros_like(s), t, generator)

    return Broken(5, 0.3)
