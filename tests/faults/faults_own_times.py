"""One time per position (theory section 14).

All these objects are correct with one time per sequence.
"""

from planting import fault, tree

import ddlib as dd
from ddlib.processes import GIDD, Hierarchical, Masked, PerWord, RateMatrix, Uniform
from ddlib.schedules import Cosine, Linear

MATRIX = RateMatrix.examples()[1].matrix


def first(t):
    """Time of the first position, for all positions."""
    return t[:, :1].expand_as(t) if t.ndim == 2 else t


def next_one(t):
    """Time of the previous position, for every position."""
    return t.roll(1, 1) if t.ndim == 2 else t


def mean(t):
    return t.mean(1, keepdim=True).expand_as(t) if t.ndim == 2 else t


@fault("q_t(z|x), t of the position", Hierarchical, tree(), Linear())
def the_marginal_uses_the_time_of_the_first_position(marginal, self, x, t):
    return marginal(x, first(t))


@fault("q_t(z|x), elementwise", Hierarchical, tree(), Linear())
def the_likelihood_uses_the_time_of_the_previous_position(likelihood, self, z, x, t):
    return likelihood(z, x, next_one(t))


@fault("w_i(t_l)", Hierarchical, tree(), Linear())
def the_loss_weight_uses_the_mean_time_of_the_sequence(loss_weight, self, x, z, t):
    return loss_weight(x, z, mean(t))


@fault("s_ij at t_l", Hierarchical, tree(), Linear())
def edge_shares_use_the_time_of_the_first_position(edge_shares, self, z, t, edge_weights=None):
    return edge_shares(z, first(t), edge_weights)


@fault("p(z_s|z_t), s and t of the position", Hierarchical, tree(), Linear())
def the_level_posterior_uses_the_times_of_the_previous_position(
    level_posterior, self, level, t, s, lift=None
):
    return level_posterior(level, next_one(t), next_one(s), lift)


@fault("z_t ~ q_t(.|x), t of the position", Masked, 5, Linear())
def sample_uses_the_time_of_the_first_position(
    sample, self, x, t, generator=None, levels="independent"
):
    return sample(x, first(t), generator, levels)


@fault("z_t ~ q_{t|s}(.|z_s), s and t of the position", Uniform, 4, Cosine())
def sample_forward_uses_the_mean_times_of_the_sequence(
    sample_forward, self, z, s, t, generator=None
):
    return sample_forward(z, mean(s), mean(t), generator)


@fault("z_s ~ p(z_s|z_t), s and t of the position", GIDD, 5, 0.2)
def sample_posterior_uses_the_times_of_the_first_position(
    sample_posterior, self, logits, z, t, s, noise, **controls
):
    return sample_posterior(logits, z, first(t), first(s), noise, **controls)


@fault("q_t(.|p), t of the position", GIDD, 5, 0.2)
def the_predictive_distribution_uses_the_mean_time_of_the_sequence(predictive, self, p, t):
    return predictive(p, mean(t))


@fault("lambda_x(t_l)", PerWord, Linear(), [0.5, 2.0, 1.0])
def return_rates_use_the_time_of_the_previous_position(return_rates, self, t):
    return return_rates(next_one(t))


@fault("KL(q_t(.|x) || q_t(.|uniform token)), t of the position", RateMatrix, MATRIX, Linear(), 3)
def the_prior_kl_uses_the_time_of_the_first_position(prior_kl, self, x, t=None):
    return prior_kl(x, None if t is None else first(t))


@fault("the noise u ~ U[0, 1) depends only on (seed, step, example)", Masked, 5, Linear())
def noise_at_per_position_times_depends_on_the_first_index_of_the_batch(
    sample, self, x, t, generator=None, levels="independent"
):
    if t.ndim == 2 and isinstance(generator, dd.KeyedGenerator):
        generator = dd.KeyedGenerator(
            generator.seed, generator.step, generator.index - generator.index[0]
        )
    return sample(x, t, generator, levels)
