"""Theory section 12: densities of times."""

import sys

import torch
from planting import deep, fault, hierarchical, tree

import ddlib as dd
from ddlib.processes import GIDD, Hierarchical, RateMatrix
from ddlib.processes import Uniform as Redrawn
from ddlib.times import Bell, Beta, Tabulated, TimeDensity, Uniform

DRAW, MOMENTS = sys.modules["ddlib.times.draws"], sys.modules["ddlib.processes.moments"]


@fault("the weight is 1 / g")
def the_weight_is_the_density(patch):
    patch.setattr(TimeDensity, "weight", lambda self, t, interval=(0.0, 1.0): self.density(t))
    return Beta(2.0, 1.0)


@fault("the weight is (G(high) - G(low)) / g")
def the_weight_forgets_the_interval(patch):
    class Broken(Beta):
        def weight(self, t, interval=(0.0, 1.0)):
            return super().weight(t)

    return Broken(2.0, 1.0)


@fault("E_g[f / g] = int f dt")
def a_table_is_drawn_by_masses_and_weighed_by_them(patch):
    class Broken(Tabulated):
        def density(self, t):
            return self.masses[self._cell(self.edges, t)]

    return Broken([0.0, 0.1, 0.5, 1.0], [3.0, 1.0, 2.0])


@fault("inverse(G(t)) = t")
def the_inverse_is_that_of_the_mirrored_density(patch):
    class Broken(Beta):
        def inverse(self, u):
            return 1 - super().inverse(1 - u)

    return Broken(3.0, 1.5)


@fault("inverse(G(t)) = t")
def the_inverse_is_found_in_single_precision(patch):
    class Broken(Bell):
        def inverse(self, u):
            return super().inverse(u).float().double()

    return Broken()


@fault("G is the integral of g")
def the_bells_density_lacks_the_slope_of_the_log_odds(patch):
    class Broken(Bell):
        def density(self, t):
            return super().density(t) * t * (1 - t)

    return Broken()


@fault("g integrates to one")
def the_beta_lacks_its_constant(patch):
    class Broken(Beta):
        def density(self, t):
            return t ** (self.a - 1) * (1 - t) ** (self.b - 1)

    return Broken(2.0, 2.0)


@fault("g is positive inside (0, 1)")
def the_first_tenth_is_never_drawn(patch):
    class Broken(TimeDensity):
        def density(self, t):
            return torch.where(t < 0.1, 0.0, 1 / 0.9)

        def cumulative(self, t):
            return ((t - 0.1) / 0.9).clamp_min(0)

    return Broken()


@fault("G(1) = 1")
def half_of_the_draws_have_no_time(patch):
    class Broken(Uniform):
        def cumulative(self, t):
            return t / 2

    return Broken()


@fault("times are inverse(u)")
def uniforms_are_taken_for_times(patch):
    class Broken(Beta):
        pass

    right = DRAW._METHODS["stratified"]

    def through(n, generator, device):
        return Broken(2.0, 1.0).cumulative(right(n, generator, device))

    patch.setitem(DRAW._METHODS, "stratified", through)
    return Broken(2.0, 1.0)


@fault("m = sum a_i w_i k_i, m^2 + v = sum a_i w_i^2 k_i^2")
def the_mean_square_is_the_square_of_the_mean(patch):
    class Broken(Hierarchical):
        def time_moments(self, t, divergences=None):
            mean, _ = super().time_moments(t, divergences)
            return mean, mean**2

    return hierarchical(Broken)


@fault("m = sum a_i w_i k_i")
def what_is_paid_is_given_to_the_levels_in_reverse(patch):
    right = MOMENTS.nats_of_levels
    timed = sys.modules["ddlib.processes.optimal_times"]
    patch.setattr(timed, "nats_of_levels", lambda levels, given: right(levels, given)[::-1])
    return hierarchical(Hierarchical, deep())


@fault("m = sum a_i w_i k_i")
def the_occupancies_are_left_out(patch):
    class Broken(Hierarchical):
        def time_moments(self, t, divergences=None):
            paid = self.weights(t)[:, 1:] * torch.tensor(divergences or [1.0, 1.0], dtype=torch.float64)
            return paid.sum(-1), (paid**2).sum(-1)

    return hierarchical(Broken, tree(xi=1.0))


@fault("time_density gives a density of times")
def a_process_answers_with_a_table_of_numbers(patch):
    class Broken(GIDD):
        def time_density(self, length, divergences=None):
            return super().time_density(length, divergences).masses

    return Broken(5, 0.2)


@fault("g ~ sqrt(E f^2)")
def a_flat_predictor_pays_in_proportion_to_the_rate_backwards(patch):
    """The density of ddlib 0.1: the rate grows like 1 / (1 - t) where the divergence has vanished."""

    class Broken(RateMatrix):
        def time_moments(self, t, divergences=None):
            x, z, _ = self.equivalence_classes()
            x, z = x.expand(len(t), -1), z.expand(len(t), -1)
            mass, paid = self.likelihood(z, x, t), self.loss_weight(x, z, t)
            return tuple((mass * paid**power).sum(-1) / self.vocab_size for power in (1, 2))

    steps = torch.diag(torch.full((5,), 40.0), 1) + torch.diag(torch.full((5,), 40.0), -1)
    return Broken(steps - torch.diag(steps.sum(1)), dd.schedules.Linear())


@fault("g ~ sqrt(E f^2)")
def the_first_tenth_of_time_is_drawn_a_tenth_as_often(patch):
    class Broken(Redrawn):
        def time_density(self, length, divergences=None, chance=1.0):
            right = super().time_density(length, divergences, chance)
            return Tabulated(right.edges, torch.where(right.edges[1:] < 0.1, 0.1, 1.0) * right.masses)

    return Broken(8, dd.schedules.Linear())


@fault("g ~ sqrt(E f^2)")
def moments_are_taken_on_a_grid_without_its_end(patch):
    class Broken(GIDD):
        def time_moments(self, t, divergences=None):
            return super().time_moments(t.clamp(0.2, 0.8), divergences)

    return Broken(5, 0.2)


@fault("E f^2 / g ~ t^-b")
def tails_are_sought_where_there_are_none(patch):
    class Broken(Redrawn):
        def tail_exponents(self, density=None):
            square = self.time_moments(torch.tensor([0.1, 0.9, 0.5], dtype=torch.float64))[1].log10()
            return float(square[0] - square[2]), float(square[1] - square[2])

    return Broken(5, dd.schedules.Linear())


@fault("E f^2 / g ~ t^-b")
def rare_tokens_are_left_out_of_the_mean_square(patch):
    right = MOMENTS.dense_moments

    def likely(process, t, nats):
        mean, _ = right(process, t, nats)
        return mean, mean**2

    patch.setattr(sys.modules["ddlib.processes.optimal_times"], "dense_moments", likely)
    ring = torch.eye(5, dtype=torch.float64).roll(1, 0)
    return RateMatrix(ring + ring.T - 2 * torch.eye(5), dd.schedules.Linear())


@fault("g is positive inside (0, 1)")
def a_process_leaves_out_what_it_thinks_is_cheap(patch):
    class Sparse(TimeDensity):
        def __init__(self, inner):
            self.inner = inner

        def density(self, t):
            return torch.where(t > 0.99, 0.0, self.inner.density(t))

        def cumulative(self, t):
            return self.inner.cumulative(t)

        def inverse(self, u):
            return self.inner.inverse(u)

    class Broken(Hierarchical):
        def time_density(self, length, divergences=None):
            return Sparse(super().time_density(length, divergences))

    return hierarchical(Broken)


@fault("an interval is a part of the draws")
def an_interval_is_measured_in_time(patch):
    patch.setattr(TimeDensity, "within", lambda self, interval, like: interval)
    return dd.times.Beta(3.0, 1.0)
