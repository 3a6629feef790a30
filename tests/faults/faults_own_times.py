"""Theory section 14: a time per position. All of these are right at one time per sequence."""

from planting import fault, hierarchical

import ddlib as dd
from ddlib.processes import GIDD, Hierarchical, Masked, PerWord, RateMatrix, Uniform
from ddlib.schedules import Cosine, Linear


def first(t):
    """The time of the first position, for all of them."""
    return t[:, :1].expand_as(t) if t.ndim == 2 else t


def next_one(t):
    """The time of the position before."""
    return t.roll(1, 1) if t.ndim == 2 else t


def mean(t):
    return t.mean(1, keepdim=True).expand_as(t) if t.ndim == 2 else t


@fault("q_t(z|x), t of the position")
def the_first_position_tells_the_time_of_all(patch):
    class Broken(Hierarchical, own_times=True):
        def marginal(self, x, t):
            return super().marginal(x, first(t))

    return hierarchical(Broken)


@fault("q_t(z|x), elementwise")
def likelihoods_are_at_the_time_of_a_neighbour(patch):
    class Broken(Hierarchical, own_times=True):
        def likelihood(self, z, x, t):
            return super().likelihood(z, x, next_one(t))

    return hierarchical(Broken)


@fault("w_i(t_l)")
def weights_are_at_the_mean_of_the_times(patch):
    class Broken(Hierarchical, own_times=True):
        def loss_weight(self, x, z, t):
            return super().loss_weight(x, z, mean(t))

    return hierarchical(Broken)


@fault("s_ij at t_l")
def edges_are_shared_at_the_first_time(patch):
    class Broken(Hierarchical, own_times=True):
        def edge_shares(self, z, t, edge_weights=None):
            return super().edge_shares(z, first(t), edge_weights)

    return hierarchical(Broken)


@fault("p(z_s|z_t), s and t of the position")
def the_posterior_takes_another_positions_duration(patch):
    class Broken(Hierarchical, own_times=True):
        def level_posterior(self, level, t, s, lift=None):
            return super().level_posterior(level, next_one(t), next_one(s), lift)

    return hierarchical(Broken)


@fault("z_t ~ q_t(.|x), t of the position")
def a_text_is_drawn_at_its_first_time(patch):
    class Broken(Masked, own_times=True):
        def sample(self, x, t, generator=None, levels="independent"):
            return super().sample(x, first(t), generator, levels)

    return Broken(5, Linear())


@fault("z_t ~ q_{t|s}(.|z_s), s and t of the position")
def a_text_goes_on_by_its_mean_time(patch):
    class Broken(Uniform, own_times=True):
        def sample_forward(self, z, s, t, generator=None):
            return super().sample_forward(z, mean(s), mean(t), generator)

    return Broken(4, Cosine())


@fault("z_s ~ p(z_s|z_t), s and t of the position")
def a_text_lands_at_its_first_time(patch):
    class Broken(GIDD, own_times=True):
        def sample_given_level(self, logits, z, t, s, target, generator=None, **controls):
            return super().sample_given_level(logits, z, first(t), first(s), target, generator, **controls)

    return Broken(5, 0.2)


@fault("q_t(.|p), t of the position")
def a_mixture_is_that_of_the_mean_time(patch):
    class Broken(GIDD, own_times=True):
        def predictive(self, p, t):
            return super().predictive(p, mean(t))

    return Broken(5, 0.2)


@fault("lambda_x(t_l)")
def words_return_at_the_pace_of_a_neighbours_time(patch):
    class Broken(PerWord, own_times=True):
        def return_rates(self, t):
            return super().return_rates(next_one(t))

    return Broken(Linear(), [0.5, 2.0, 1.0])


@fault("KL(q_t(.|x) || q_t(.|uniform word)), t of the position")
def the_prior_term_is_at_the_first_time(patch):
    class Broken(RateMatrix, own_times=True):
        def prior_kl(self, x, t=None):
            return super().prior_kl(x, None if t is None else first(t))

    return Broken(dd.processes.RateMatrix.examples()[1].matrix, Linear(), vocab_size=3)


@fault("u ~ U[0, 1) of (seed, step, example)")
def noise_of_a_text_with_own_times_depends_on_its_batch(patch):
    class Broken(Masked, own_times=True):
        def sample(self, x, t, generator=None, levels="independent"):
            if t.ndim == 2 and isinstance(generator, dd.KeyedGenerator):
                generator = dd.KeyedGenerator(generator.seed, generator.step, generator.index - generator.index[0])
            return super().sample(x, t, generator, levels)

    return Broken(5, Linear())
