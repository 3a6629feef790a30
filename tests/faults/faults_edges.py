"""One schedule per edge, windows and rates (theory section 15).

Kernels between levels (section 16).
"""

import math
import sys

import torch
from planting import fault, tree

from ddlib.hierarchies import Banded, Blur, Dense, Kernels, Soft, Sparse
from ddlib.hierarchies.kernels import Kernel
from ddlib.processes import Hierarchical, unsqueeze_times
from ddlib.processes.edge_chain import EdgeChain, Polynomials
from ddlib.schedules import Cosine, Linear, Polynomial, Rate, Symbolic, Window

EDGE_CHAIN = sys.modules["ddlib.processes.edge_chain"]
DIVERGENCE = sys.modules["ddlib.processes.hierarchical_kl"]
UNLIKE = [Cosine(), Linear()]
STAGED = [Window(Linear(), 0.0, 0.5), Window(Linear(), 0.5, 1.0)]
OVERLAPPING = [Window(Linear(), 0.0, 0.6), Window(Linear(), 0.4, 1.0)]
DIVERGING = [Window(Polynomial(0.25), 0.0, 0.5), Window(Linear(), 0.5, 1.0)]
"""alpha^2, the speed of the edge above the tokens, is (1 - 2 t)^(1/2) before t = 1/2."""
LATE_ROOT = [Linear(), Window(Symbolic("1 - sqrt(t)"), 0.4375 - 2.0**-50, 1.0)]
"""The flux of the upper edge diverges after a start that is just before the float32 time 7/16."""
SQUARE = Dense([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.0, 0.7]])
REPEATED = Sparse([[0, 0], [0, 1], [1, 1]], [[0.3, 0.7], [0.6, 0.4], [0.5, 0.5]])
MEMBERS = [[1.0, 0.0], [0.5, 0.5], [0.2, 0.8], [0.0, 1.0]]
OF_KERNELS = Hierarchical, Kernels.examples()[1], Linear()


def edges(breaks, schedules=UNLIKE, within=EdgeChain):
    """Fault of the level chain of a tree with these schedules."""
    return fault(breaks, Hierarchical, tree(), schedules, within=within)


def levels(breaks, within, *kernels):
    """Fault of a class of kernels, in a hierarchy of them."""
    return fault(breaks, Kernels, kernels, within=within)


def made(cls, *arguments):
    """Object of the subclass, checked by the constructor of its base class."""
    found = cls.__base__(*arguments)
    found.__class__ = cls
    return found


@edges("edge i has the rate of its schedule")
def edge_rates_use_the_schedules_in_reverse_order(rates, self, t):
    return self.speeds * torch.stack([schedule.rate(t) for schedule in self.schedules[::-1]], -1)


@edges("edge i survives with alpha_i^gamma_i")
def edge_rates_omit_the_speeds(rates, self, t):
    return rates(t) / self.speeds


@edges("T_ij = int T_i,j-1 lambda_j-1 T_jj", within=Polynomials)
def the_derivatives_of_the_edge_hazards_are_shifted_by_one_edge(derivative, self, values):
    return derivative(values).roll(-1, -1)


@edges("integrals of polynomials of degree 16 are exact", within=Polynomials)
def integrals_use_the_trapezoidal_rule(integral, self, values):
    areas = (values[..., 1:] + values[..., :-1]) * self.points.diff()
    return torch.nn.functional.pad(areas.cumsum(-1), (1, 0))


@edges("T(s, t) = T(s, u) T(u, t)")
def transition_matrices_of_panels_are_multiplied_in_the_wrong_order(_product, self, first, count):
    half = count // 2
    return _product(first + half, count - half) @ _product(first, half)


@edges("the results of a batch of times are in the order of the times")
def the_results_of_a_batch_of_times_are_in_reverse_order(_distinct, self, function, *times):
    return _distinct(function, *times).flip(0)


@edges("alpha_i^-1(alpha_i(t_i) U^(1 / gamma_i))")
def entry_times_omit_the_speeds(entry_times, self, exponentials):
    return entry_times(exponentials * self.speeds)


@edges("alpha_i^-1(alpha_i(t_i) U)")
def entry_times_ignore_the_hazard_before_the_level_was_entered(entry_times, self, exponentials):
    hazards = (exponentials / self.speeds).unbind(-1)
    found = [each.time_of(hazard) for each, hazard in zip(self.schedules, hazards, strict=True)]
    return torch.stack(found, -1).cummax(-1).values


@edges("T(s, t) is the product over all panels between s and t", OVERLAPPING)
def the_transition_omits_the_last_whole_panel(_product, self, first, count):
    return _product(first, (count - 1).clamp_min(0))


@edges("the times of a window's hazards lie between its start and its end", STAGED, Window)
def the_time_of_a_hazard_in_a_window_omits_its_start(time_of, self, hazard):
    return time_of(hazard) - self.start


@fault(
    "times of float32 have the integral of the flux",
    Hierarchical,
    tree(),
    DIVERGING,
    within=EDGE_CHAIN,
)
def a_flux_diverges_at_an_end_between_two_times_of_float32(finite_flux, schedule, speed):
    return schedule


@fault(
    "times of float32 have the integral of the flux",
    Hierarchical,
    tree(),
    LATE_ROOT,
    within=EDGE_CHAIN,
)
def a_flux_diverges_at_a_start_between_two_times_of_float32(finite_flux, schedule, speed):
    return schedule


@fault("rate = -alpha' / alpha, alpha' the derivative by t", Window, Linear(), 0.0, 0.6)
def the_rate_of_a_window_is_not_divided_by_its_length(rate, self, t):
    return rate(t) * (self.end - self.start)


@fault("alpha((t - start) / (end - start))", Window, Cosine(), 0.3, 1.0)
def the_inverse_of_a_window_omits_its_start(inverse, self, alpha):
    return inverse(alpha) - self.start


@fault("hazard(t) is the integral of the rate from 0 to t", Rate, "2/(1 - t)", build=made)
def the_hazard_of_a_rate_restarts_at_0_in_each_panel(hazard, self, t):
    panel = (torch.searchsorted(self._grid, t.double().contiguous(), right=True) - 1).clamp(
        0, len(self._grid) - 2
    )
    return hazard(t) - hazard(self._grid[panel].to(t))


@fault("-log alpha = hazard", Rate, "2/(1 - t)", build=made)
def the_times_of_hazards_are_rounded_to_three_decimals(time_of, self, hazard):
    return (time_of(hazard) * 1000).round() / 1000


@fault(
    "K(parent|child), rows sum to 1", lambda: Kernels([Banded(5, [1.0, 2.0, 1.0])]), within=Banded
)
def a_banded_kernel_is_normalised_over_children_in_place_of_parents(
    __init__, self, *arguments, **options
):
    __init__(*arguments, **options)
    self.values = self.values / self.matrix().sum(0)[self.index]


@levels("K(z|y) for every y", Dense, SQUARE)
def column_returns_the_row_of_the_matrix(column, self, parent):
    return self.row(parent)


@levels("u_1(.|p) = p K", Dense, SQUARE)
def push_multiplies_by_the_transposed_matrix(push, self, probs):
    return probs @ self.values.mT.to(probs.dtype)


@levels("K_{i->j} = K_i ... K_{j-1}", Dense, SQUARE, SQUARE.matrix().flip(0))
def the_product_of_two_matrices_starts_with_the_upper_one(compose, self, upper):
    return (
        Dense(upper.matrix() @ self.values)
        if upper.num_parents == self.num_parents
        else compose(upper)
    )


@levels("log u_1(z|p) is accurate for very small probabilities", Kernel, Dense(MEMBERS))
def log_push_clamps_relative_masses_at_exp_of_minus_20(log_push, self, log_probs):
    highest = log_probs.amax(-1, keepdim=True)
    return self.push((log_probs - highest).exp()).clamp_min(math.exp(-20)).log() + highest


@levels("log u_1(z|p) is accurate for very small probabilities", Kernel, Dense(MEMBERS))
def log_mass_is_clamped_at_minus_20(log_mass, self, log_probs, parent):
    return log_mass(log_probs, parent).clamp_min(-20.0)


@levels("the probabilities of equal parents are added", Sparse, REPEATED)
def at_parents_does_not_sum_the_probabilities_of_equal_parents(at_parents, self, child, *values):
    _, part, *others = at_parents(child, *values)
    return part, part, *others


@levels("K(z|y) for every y", Sparse, REPEATED)
def the_column_omits_the_first_child_of_a_state(_below, self, parent):
    child, probability = _below(parent)
    return child[..., 1:], probability[..., 1:]


@fault("parents_of_all is true only at parents that every child may have")
def every_parent_is_that_of_all_children(patch):
    every = property(lambda self: torch.ones(self.num_parents, dtype=torch.bool))
    patch.setattr(Kernel, "parents_of_all", every)
    return Kernels([Dense(MEMBERS)])


@levels("a parent is drawn by inversion of the cumulative row", Kernel, SQUARE)
def sample_never_draws_the_last_parent(sample, self, child, u):
    return sample(child, u).clamp_max(max(self.num_parents - 2, 0))


@levels("the probabilities of equal parents are added", Sparse, REPEATED)
def row_keeps_only_the_last_of_equal_parents(row, self, child):
    empty = self.values.new_zeros(*child.shape, self.num_parents)
    return empty.scatter(-1, self.index[child], self.values[child])


@levels("the probabilities of equal parents are added", Sparse, REPEATED)
def entry_keeps_only_the_first_of_equal_parents(entry, self, child, parent):
    hit = self.index[child] == parent[..., None]
    return torch.where(hit & (hit.cumsum(-1) == 1), self.values[child], 0.0).sum(-1)


@levels("each parent is drawn with its probability", Sparse, REPEATED)
def sample_always_returns_the_first_listed_parent(sample, self, child, u):
    return self.index[child, 0]


@fault("products of sparse kernels are sparse kernels")
def the_product_of_sparse_kernels_uses_only_the_likeliest_upper_parents(patch):
    patch.setattr("ddlib.hierarchies.sparse_kernels._DENSE", 0)
    patch.setattr(
        Sparse,
        "compose",
        lambda self, upper: (
            Sparse(upper.parents[self.index], self.values, upper.num_parents)
            if isinstance(upper, Sparse)
            else upper.after(self.matrix())
        ),
    )
    return Kernels(
        [
            Sparse([[0, 1], [1, 2], [2, 0]], [[0.5, 0.5]] * 3),
            Sparse([[0, 1], [1, 0], [0, 1]], [[0.7, 0.3]] * 3),
        ]
    )


@fault("a token is in each of its clusters with its probability")
def plain_is_true_for_a_kernel_with_several_parents(patch):
    patch.setattr(Dense, "plain", property(lambda self: True))
    return Hierarchical(Soft(MEMBERS), Linear())


@fault("the mean is over the children of positive probability", *OF_KERNELS, within=DIVERGENCE)
def children_of_probability_0_are_not_excluded_from_the_mean(
    _members_term, hierarchy, i, j, log_probs, x, local, u_z
):
    given = hierarchy.between(0, i).row(x)
    pi = hierarchy.between(i, j).column(local) * given / u_z.clamp_min(1e-300)[..., None]
    return (pi.to(log_probs.dtype) * (given.log().to(log_probs.dtype) - log_probs)).sum(-1)


@fault("pi(y|z, x) = K(z|y) u(y|x) / u(z|x)", *OF_KERNELS, within=DIVERGENCE)
def the_mean_over_children_is_not_conditioned_on_z(
    _members_term, hierarchy, i, j, log_probs, x, local, u_z
):
    given = hierarchy.between(0, i).row(x)
    ratio = torch.where(given > 0, given.log().to(log_probs.dtype) - log_probs, 0.0)
    return (given.to(log_probs.dtype) * ratio).sum(-1)


@fault("KL(q_t(.|x) || q_t) is a sum over all clusters", Hierarchical, Blur(5, [1.0]), Linear())
def the_prior_kl_uses_only_the_likeliest_parent_of_each_token(prior_kl, self, x, t=None):
    times = self._one().expand(len(x)) if t is None else t
    occupied = unsqueeze_times(self.occupancies(times), 1)
    size = self.vocab_size
    typical = self.hierarchy.level_probs(torch.full((size,), 1 / size, dtype=torch.float64))
    found = sum(
        occupied[..., i] * -typical[i][self.hierarchy.between(0, i).parents[x]].log()
        for i in (1, 2)
    )
    return found + occupied[..., 0] * torch.tensor(float(size)).log()
