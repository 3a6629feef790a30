"""Densities of times (theory section 12)."""

import sys

import torch
from planting import deep, fault, tree

from ddlib.processes import GIDD, Hierarchical, RateMatrix
from ddlib.processes import Uniform as Redrawn
from ddlib.schedules import Linear, Window
from ddlib.times import Bell, Beta, Tabulated, TimeDensity, Uniform

DRAW = sys.modules["ddlib.times.draws"]
OPTIMAL = sys.modules["ddlib.processes.optimal_times"]
LEVELS = sys.modules["ddlib.processes.level_process"]
IN_TURN = [Window(Linear(), 0.0, 0.5), Window(Linear(), 0.5, 1.0)]
SHIFT = torch.diag(torch.ones(5), 1)
RING = torch.eye(5, dtype=torch.float64).roll(1, 0)


def chain(steps):
    """Rate matrix with these rates between different states."""
    return steps - torch.diag(steps.sum(1))


fault("the weight is 1 / g", Beta, 2.0, 1.0, within=TimeDensity)(
    the_weight_is_the_density=lambda weight, self, t, interval=(0.0, 1.0): self.density(t)
)
fault("the weight is (G(high) - G(low)) / g", Beta, 2.0, 1.0)(
    the_weight_ignores_the_interval=lambda weight, self, t, interval=(0.0, 1.0): weight(t)
)
fault("a step has the probability G(t) - G(s)", Beta, 2.0, 1.0)(
    the_weight_of_a_step_is_that_of_its_end=lambda step_weight, self, s, t, interval=(0.0, 1.0): (
        self.weight(t, interval)
    )
)
fault("E_g[f / g] = int f dt", Tabulated, [0.0, 0.1, 0.5, 1.0], [3.0, 1.0, 2.0])(
    the_density_of_a_table_is_not_divided_by_the_cell_width=lambda density, self, t: self.masses[
        self._cell(self.edges, t)
    ]
)
fault("inverse(G(t)) = t", Beta, 3.0, 1.5)(
    the_inverse_is_that_of_the_mirrored_density=lambda inverse, self, u: 1 - inverse(1 - u)
)
fault("inverse(G(t)) = t", Bell)(
    the_inverse_is_rounded_to_float32=lambda inverse, self, u: inverse(u).float().double()
)
fault("G is the integral of g", Bell)(
    the_bell_density_omits_the_derivative_of_the_log_odds=lambda density, self, t: (
        density(t) * t * (1 - t)
    )
)
fault("g integrates to one", Beta, 2.0, 2.0)(
    the_beta_density_is_not_normalised=lambda density, self, t: (
        t ** (self.a - 1) * (1 - t) ** (self.b - 1)
    )
)


@fault("g is positive inside (0, 1)")
def times_below_one_tenth_have_density_0(patch):
    class Broken(TimeDensity):
        def density(self, t):
            return torch.where(t < 0.1, 0.0, 1 / 0.9)

        def cumulative(self, t):
            return ((t - 0.1) / 0.9).clamp_min(0)

    return Broken()


@fault("G(1) = 1", Uniform)
def the_cumulative_function_ends_at_one_half(cumulative, self, t):
    return t / 2


@fault("times are inverse(u)", Beta, 2.0, 1.0, within=DRAW._METHODS)
def drawn_times_follow_the_uniform_density(stratified, n, generator, device):
    return Beta(2.0, 1.0).cumulative(stratified(n, generator, device))


@fault("m = sum a_i w_i k_i, m^2 + v = sum a_i w_i^2 k_i^2", Hierarchical, tree(), Linear())
def the_mean_square_is_the_square_of_the_mean(time_moments, self, t, divergences=None):
    mean, _ = time_moments(t, divergences)
    return mean, mean**2


@fault("m = sum a_i w_i k_i", Hierarchical, deep(), Linear(), within=LEVELS)
def the_divergences_of_the_levels_are_in_reverse_order(nats_of_levels, hierarchy, given):
    return nats_of_levels(hierarchy, given)[::-1]


@fault("m = sum a_i w_i k_i", Hierarchical, tree(xi=1.0), Linear())
def time_moments_omit_the_occupancies(time_moments, self, t, divergences=None):
    paid = self.weights(t)[:, 1:] * torch.tensor(divergences or [1.0, 1.0], dtype=torch.float64)
    return paid.sum(-1), (paid**2).sum(-1)


@fault("time_density gives a density of times", GIDD, 5, 0.2, raises="AttributeError")
def time_density_returns_a_tensor(time_density, self, length, divergences=None, chance=1.0):
    return time_density(length, divergences, chance).masses


@fault("g ~ sqrt(E f^2)", RateMatrix, chain(40 * (SHIFT + SHIFT.T)), Linear())
def time_moments_use_the_loss_weight_without_the_divergence(
    time_moments, self, t, divergences=None
):
    """Use the density of ddlib 0.1: the rate grows like 1 / (1 - t) where the divergence is almost
    0.
    """
    x, z, _ = self.equivalence_classes()
    x = x.expand(len(t), -1)
    z = z.expand(len(t), -1)
    mass = self.likelihood(z, x, t)
    paid = self.loss_weight(x, z, t)
    return tuple((mass * paid**power).sum(-1) / self.vocab_size for power in (1, 2))


@fault("g ~ sqrt(E f^2)", Redrawn, 8, Linear())
def the_density_of_times_below_one_tenth_is_too_low(
    time_density, self, length, divergences=None, chance=1.0
):
    right = time_density(length, divergences, chance)
    return Tabulated(right.edges, torch.where(right.edges[1:] < 0.1, 0.1, 1.0) * right.masses)


@fault("g ~ sqrt(E f^2)", GIDD, 5, 0.2)
def time_moments_clamp_times_to_the_middle_of_the_interval(time_moments, self, t, divergences=None):
    return time_moments(t.clamp(0.2, 0.8), divergences)


@fault("E f^2 / g ~ t^-b", Redrawn, 5, Linear())
def tail_exponents_are_estimated_far_from_the_ends(tail_exponents, self, density=None):
    square = self.time_moments(torch.tensor([0.1, 0.9, 0.5], dtype=torch.float64))[1].log10()
    return {0.0: float(square[0] - square[2]), 1.0: float(square[1] - square[2])}


@fault("E f^2 / g ~ t^-b at every start of a window", Hierarchical, tree(), IN_TURN)
def tail_exponents_are_0_at_the_starts_of_windows(tail_exponents, self, density=None):
    return {
        end: exponent if end in (0, 1) else 0.0 for end, exponent in tail_exponents(density).items()
    }


@fault("E f^2 / g ~ t^-b", RateMatrix, chain(RING + RING.T), Linear(), within=OPTIMAL)
def the_dense_mean_square_is_the_square_of_the_mean(dense_moments, process, t, nats):
    mean, _ = dense_moments(process, t, nats)
    return mean, mean**2


class Sparse(TimeDensity):
    """Density of times ``inner``, with the value 0 above 0.99."""

    def __init__(self, inner):
        self.inner = inner

    def density(self, t):
        return torch.where(t > 0.99, 0.0, self.inner.density(t))

    def cumulative(self, t):
        return self.inner.cumulative(t)

    def inverse(self, u):
        return self.inner.inverse(u)


@fault("g is positive inside (0, 1)", Hierarchical, tree(), Linear())
def the_density_of_times_is_0_near_time_1(time_density, self, length, divergences=None, chance=1.0):
    return Sparse(time_density(length, divergences, chance))


@fault("draws lie within the given interval of times", Beta, 3.0, 1.0, within=TimeDensity)
def an_interval_of_times_is_used_as_an_interval_of_probabilities(within, self, interval, like):
    return interval
