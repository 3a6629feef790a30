"""Weightings, and losses on all edges below a state (theory sections 2 and 12)."""

import sys

import torch
from planting import deep, fault, tree

from ddlib.processes import Hierarchical, unsqueeze_times
from ddlib.processes.broadcasting import gather_last
from ddlib.schedules import Linear
from ddlib.weightings import Clip, Constant, Weighting

TRAINING = sys.modules["ddlib.objective.training"]
PLANS = sys.modules["ddlib.kernels.dispatch"]
SIBLINGS = sys.modules["ddlib.kernels.sibling_loss"]
DIVERGENCE = sys.modules["ddlib.processes.hierarchical_kl"]
STATISTICS = sys.modules["ddlib.kernels.cluster_mass"]


fault("a weight of 0 stays 0", Weighting)(
    a_lower_limit_makes_zero_weights_positive=lambda __call__, self, process, weight, x, z, t: (
        weight.clamp(0.5, 2.0)
    ),
    a_constant_weight_also_applies_to_tokens=lambda __call__, self, process, weight, x, z, t: (
        torch.ones_like(weight)
    ),
)


@fault("a weight is >= 0", Weighting)
def the_weighting_returns_the_logarithm_of_the_weight(__call__, self, process, weight, x, z, t):
    return torch.where(weight > 0, weight, 1.0).log()


@fault("a weight is finite", Weighting)
def the_weight_is_divided_by_0_at_small_times(__call__, self, process, weight, x, z, t):
    return weight / (t > 1e-3).double()[:, None]


@fault("a weight is computed in float64", Weighting)
def the_weight_is_rounded_to_float32(__call__, self, process, weight, x, z, t):
    return weight.clamp_max(2.0).float()


@fault("a token's weight depends on no other token", Weighting)
def weights_are_divided_by_their_mean_over_the_batch(__call__, self, process, weight, x, z, t):
    return weight / weight.mean().clamp_min(1e-300)


@fault("a token's weight depends on no other token", Weighting)
def positive_weights_are_replaced_by_the_largest_weight_of_the_batch_row(
    __call__, self, process, weight, x, z, t
):
    return torch.where(weight > 0, weight.amax(1, keepdim=True), 0.0)


fault("the given weight is not modified", Weighting)(
    the_given_weight_is_clamped_in_place=lambda __call__, self, process, weight, x, z, t: (
        weight.clamp_(max=2.0)
    )
)
fault("at every time some state has a positive weight", Weighting)(
    the_weight_is_0_at_late_times=lambda __call__, self, process, weight, x, z, t: (
        weight * (t < 0.9).double()[:, None]
    )
)
fault("a weighting that changes weights is not declared to be the bound", Clip, 2.0)(
    a_clipped_weighting_is_declared_to_be_the_bound=lambda bound, self: True
)


@fault("the loss is the weight of the weighting times the divergence", Constant, within=TRAINING)
def the_loss_is_also_multiplied_by_the_weight_of_the_bound(
    loss_weights, rule, process, weight, *given
):
    return weight * loss_weights(rule, process, weight, *given)


@fault("the fused loss uses the weighting", Clip, 2.0, within=PLANS)
def the_fused_loss_ignores_the_weighting(loss_weights, rule, process, weight, *given):
    return weight


@fault("w_i s_ij = F_{j-1} / (a_j + ... + a_n)", Hierarchical, deep(), Linear())
def all_edges_below_a_state_have_share_1(edge_shares, self, z, t, edge_weights=None):
    found = edge_shares(z, t, edge_weights)
    return found if edge_weights is not None else (found > 0).double()


@fault("w_i s_ij = F_{j-1} / (a_j + ... + a_n)", Hierarchical, deep(), Linear())
def the_flux_of_an_edge_is_divided_evenly_among_all_levels(
    edge_shares, self, z, t, edge_weights=None
):
    found = edge_shares(z, t, edge_weights)
    weights = self.weights(t)
    level = self.level_of(z)
    occupied, own = (gather_last(of, level)[..., None] for of in (self.occupancies(t), weights))
    evenly = (
        unsqueeze_times(weights * self.occupancies(t), 1)[..., 1:]
        / self.hierarchy.depth
        / occupied
        / own
    )
    return found if edge_weights is not None else torch.where(found > 0, evenly, 0.0)


@fault("w_i s_ij = F_{j-1} / (a_j + ... + a_n)", Hierarchical, deep(), Linear())
def each_edge_below_a_state_has_the_share_of_the_next_edge(
    edge_shares, self, z, t, edge_weights=None
):
    found = edge_shares(z, t, edge_weights)
    outwards = torch.cat([found[..., 1:], found[..., -1:]], -1) * (found > 0)
    return found if edge_weights is not None else outwards


@fault("edges above a state have share 0", Hierarchical, tree(), Linear())
def the_divergence_at_a_cluster_includes_the_edge_above_it(
    edges_weighted_divergence, self, logits, x, z, t, edge_weights=None
):
    weight, divergence = edges_weighted_divergence(logits, x, z, t, edge_weights)
    edge = self.hierarchy.maps[0]
    cluster = edge.log_push(logits.log_softmax(-1)).gather(-1, edge.parents[x][..., None])[..., 0]
    return weight, torch.where(self.level_of(z) == 1, divergence - cluster, divergence)


@fault(
    "the path from z has the distribution P(y|z, x)",
    Hierarchical,
    deep(),
    Linear(),
    within=DIVERGENCE,
)
def the_distribution_of_the_path_is_not_conditioned_on_z(
    _members_term, hierarchy, i, j, probs, x, here, u_z
):
    given = hierarchy.between(0, i).row(x)
    return torch.where(given > 0, given * (given.clamp_min(1e-300).log() - probs), 0.0).sum(-1)


@fault(
    "the terms of all edges below a state sum to its term of the bound",
    Hierarchical,
    tree(),
    Linear(),
)
def edge_shares_omit_the_lowest_edge_at_states_above_the_first_level(
    edge_shares, self, z, t, edge_weights=None
):
    found = edge_shares(z, t, edge_weights).clone()
    found[..., 0] = torch.where(self.level_of(z) > 1, 0.0, found[..., 0])
    return found


@fault(
    "the fused losses equal the unfused losses", Hierarchical, tree(xi=1.0), Linear(), within=PLANS
)
def the_fused_loss_gives_share_1_to_the_edges_below_clusters(_shares, process, weights, rows):
    found = _shares(process, weights, rows)
    return torch.where(process.level_of(rows.z[:, None]) == 1, (found > 0).double(), found)


@fault(
    "the fused losses equal the unfused losses",
    Hierarchical,
    tree(xi=1.0),
    Linear(),
    within=SIBLINGS,
)
def the_gradient_of_the_bias_omits_the_edge_shares(add_product, into, columns, left, scaled):
    add_product(into, columns, left, torch.ones_like(scaled) if scaled.shape[1] == 1 else scaled)


@fault(
    "the fused losses equal the unfused losses",
    Hierarchical,
    tree(xi=1.0),
    Linear(),
    within=SIBLINGS,
)
def the_sibling_loss_uses_the_edge_shares_in_reverse_order(
    parts, children, levels, rows, level, hard, shares=None
):
    return parts(children, levels, rows, level, hard, None if shares is None else shares.flip(-1))


@fault(
    "the fused losses equal the unfused losses", Hierarchical, deep(), Linear(), within=STATISTICS
)
def the_fused_loss_counts_only_the_edge_directly_below_a_state(
    children, hierarchy, log_px, finest, x, z, shares=None
):
    return children(hierarchy, log_px, finest, x, z)
