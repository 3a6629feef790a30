"""Theory sections 2 and 12: what training makes of the weights, and losses on all edges below a state."""

import sys

import torch
from planting import deep, fault, hierarchical, tree

from ddlib.processes import Hierarchical
from ddlib.weightings import Clip, Constant, Weighting

TRAINING, PLANS = sys.modules["ddlib.objective.training"], sys.modules["ddlib.kernels.dispatch"]
SIBLINGS, DIVERGENCE = sys.modules["ddlib.kernels.sibling_loss"], sys.modules["ddlib.processes.hierarchical_kl"]
STATISTICS = sys.modules["ddlib.kernels.cluster_mass"]


def rule(change):
    """A rule that gives what ``change(weight, process, x, z, t)`` says."""

    class Broken(Weighting):
        def __call__(self, process, weight, x, z, t):
            return change(weight, process, x, z, t)

    return Broken()


@fault("a weight of 0 stays 0")
def a_lower_limit_lifts_words(patch):
    return rule(lambda weight, *_: weight.clamp(0.5, 2.0))


@fault("a weight of 0 stays 0")
def a_constant_weight_counts_words_too(patch):
    return rule(lambda weight, *_: torch.ones_like(weight))


@fault("a weight is >= 0")
def the_logarithm_of_the_weight_is_taken(patch):
    return rule(lambda weight, *_: torch.where(weight > 0, weight, 1.0).log())


@fault("a weight is finite")
def masks_are_left_out_where_nearly_all_is_clean(patch):
    return rule(lambda weight, process, x, z, t: weight / (t > 1e-3).double()[:, None])


@fault("a weight is computed in float64")
def the_weight_is_rounded_to_float32(patch):
    return rule(lambda weight, *_: weight.clamp_max(2.0).float())


@fault("a token's weight knows no other token")
def weights_are_made_to_average_one(patch):
    return rule(lambda weight, *_: weight / weight.mean().clamp_min(1e-300))


@fault("a token's weight knows no other token")
def tokens_of_a_row_share_their_largest_weight(patch):
    return rule(lambda weight, *_: torch.where(weight > 0, weight.amax(1, keepdim=True), 0.0))


@fault("the given weight is not modified")
def the_limit_is_written_into_the_given_weight(patch):
    return rule(lambda weight, *_: weight.clamp_(max=2.0))


@fault("some state of each time has a weight")
def late_times_are_left_out(patch):
    return rule(lambda weight, process, x, z, t: weight * (t < 0.9).double()[:, None])


@fault("a rule that changes weights is not the bound")
def a_clip_calls_itself_the_bound(patch):
    class Broken(Clip):
        bound = True

    return Broken(2.0)


@fault("loss = weighting's weight times divergence")
def the_loss_multiplies_by_the_bounds_weight_too(patch):
    right = TRAINING.weighted
    patch.setattr(
        TRAINING, "weighted", lambda rule, process, weight, *given: weight * right(rule, process, weight, *given)
    )
    return Constant()


@fault("the fused loss asks the same rule")
def the_fused_loss_knows_no_weighting(patch):
    patch.setattr(PLANS, "weighted", lambda rule, process, weight, *given: weight)
    return Clip(2.0)


def shares(change):
    """A hierarchy with other shares of the edges: ``change(shares, process, z, t)``."""

    class Broken(Hierarchical):
        def edge_shares(self, z, t, edge_weights=None):
            found = super().edge_shares(z, t, edge_weights)
            return found if edge_weights is not None else change(found, self, z, t)

    return Broken


@fault("w_i s_ij = F_{j-1} / (a_j + ... + a_n)")
def every_level_has_the_whole_weight_of_an_edge(patch):
    def whole(found, process, z, t):
        return (found > 0).double()

    return hierarchical(shares(whole), deep())


@fault("w_i s_ij = F_{j-1} / (a_j + ... + a_n)")
def an_edge_is_shared_with_levels_below_it(patch):
    def evenly(found, process, z, t):
        n = process.hierarchy.depth
        weights = process.weights(t) * process.occupancies(t)
        occupied = process.occupancies(t).gather(1, process.level_of(z))[..., None]
        own = process.weights(t).gather(1, process.level_of(z))[..., None]
        some = weights[:, None, 1:] / n / occupied / own
        return torch.where(found > 0, some, 0.0)

    return hierarchical(shares(evenly), deep())


@fault("w_i s_ij = F_{j-1} / (a_j + ... + a_n)")
def the_flux_out_of_the_level_stands_for_that_into_it(patch):
    def outwards(found, process, z, t):
        return torch.cat([found[..., 1:], found[..., -1:]], -1) * (found > 0)

    return hierarchical(shares(outwards), deep())


@fault("edges above a state have no share")
def a_cluster_is_asked_about_the_edge_above_it(patch):
    class Broken(Hierarchical):
        def edges_weighted_divergence(self, logits, x, z, t, edge_weights=None):
            weight, divergence = super().edges_weighted_divergence(logits, x, z, t, edge_weights)
            cluster = (
                self.hierarchy.maps[0]
                .log_push(logits.log_softmax(-1))
                .gather(-1, self.hierarchy.maps[0].parents[x][..., None])[..., 0]
            )
            return weight, torch.where(self.level_of(z) == 1, divergence - cluster, divergence)

    return hierarchical(Broken)


@fault("the way from z is P(y|z, x), not P(y|x)")
def what_is_known_of_the_way_is_forgotten(patch):
    def forgetful(hierarchy, i, j, law, x, here, u_z):
        given = hierarchy.between(0, i).row(x)
        return torch.where(given > 0, given * (given.clamp_min(1e-300).log() - law), 0.0).sum(-1)

    patch.setattr(DIVERGENCE, "_members_term", forgetful)
    return hierarchical(Hierarchical, deep())


@fault("edges add up to the whole way")
def the_edge_to_the_word_is_left_out(patch):
    class Broken(Hierarchical):
        def edge_shares(self, z, t, edge_weights=None):
            found = super().edge_shares(z, t, edge_weights).clone()
            found[..., 0] = torch.where(self.level_of(z) > 1, 0.0, found[..., 0])
            return found

    return hierarchical(Broken)


@fault("the fused losses are the plain ones")
def clusters_keep_their_whole_weight_in_the_fused_loss(patch):
    right = PLANS._shares

    def wrong(process, weights, rows):
        found = right(process, weights, rows)
        return torch.where(process.level_of(rows.z[:, None]) == 1, (found > 0).double(), found)

    patch.setattr(PLANS, "_shares", wrong)
    return hierarchical(Hierarchical, tree(xi=1.0))


@fault("the fused losses are the plain ones")
def the_bias_gets_its_gradient_without_shares(patch):
    right = SIBLINGS.add_product

    def wrong(into, columns, left, scaled):
        right(into, columns, left, torch.ones_like(scaled) if scaled.shape[1] == 1 else scaled)

    patch.setattr(SIBLINGS, "add_product", wrong)
    return hierarchical(Hierarchical, tree(xi=1.0))


@fault("the fused losses are the plain ones")
def a_level_of_the_tree_counts_as_the_edge_above_it(patch):
    right = SIBLINGS.parts

    def wrong(children, levels, rows, level, hard, shares=None):
        turned = None if shares is None else shares.flip(-1)
        return right(children, levels, rows, level, hard, turned)

    patch.setattr(SIBLINGS, "parts", wrong)
    return hierarchical(Hierarchical, tree(xi=1.0))


@fault("the fused losses are the plain ones")
def statistics_ask_for_the_edge_below_alone(patch):
    right = STATISTICS.children
    patch.setattr(
        STATISTICS,
        "children",
        lambda hierarchy, log_px, finest, x, z, shares=None: right(hierarchy, log_px, finest, x, z),
    )
    return hierarchical(Hierarchical, deep())
