"""Levels of a hierarchy, and the maps between them (theory section 2)."""

import torch
from planting import ABOVE, WORDS, deep, fault, tree

from ddlib.hierarchies import Hierarchy, Map, Tree, parent_map

ROOT = Map(torch.zeros(4, dtype=torch.int64), 1)


def with_map(cls, xi=0.8):
    """Hierarchy whose first edge is of the class."""
    right = parent_map(WORDS, xi)
    return type("Planted", (Hierarchy,), {})(
        [cls(right.parents, 4, right.keep, right.spread), ROOT], [2.0, 1.0]
    )


@fault("every other parent has the probability (1-xi)/(N-1)")
def map_rows_sum_to_less_than_1_as_in_the_published_code(patch):
    xi = 0.8
    stray = 0.2 / 4
    edge = Map(torch.tensor(WORDS), 4, xi - stray, torch.full((4,), stray, dtype=torch.float64))
    return type("Planted", (Hierarchy,), {})([edge, ROOT])


@fault("every cluster of K_i has a child")
def a_cluster_has_no_child(patch):
    return type("Planted", (Hierarchy,), {})([Map(torch.tensor([0, 0, 1, 1, 2, 2]), 4), ROOT])


@fault("K(z|y) for every y", Map, build=with_map)
def column_omits_the_probability_of_the_other_parents(column, self, parent):
    return (self.parents == parent[..., None]).to(torch.float64)


@fault("K(z|y), from child to parent", Map, build=with_map)
def entry_exchanges_child_and_parent(entry, self, child, parent):
    return entry(parent.clamp_max(self.num_children - 1), child.clamp_max(self.num_parents - 1))


@fault("u_1(.|p) = K p", Map, build=with_map)
def push_omits_the_probability_of_the_other_parents(push, self, probs):
    return torch.zeros(*probs.shape[:-1], 4, dtype=probs.dtype).scatter_add(
        -1, self.parents.expand_as(probs), probs
    )


@fault("log u_1(.|p) = log K p", Map, build=with_map)
def log_push_sums_log_probabilities_in_place_of_probabilities(log_push, self, log_probs):
    zero = torch.zeros(*log_probs.shape[:-1], 4, dtype=log_probs.dtype)
    return zero.scatter_add(-1, self.parents.expand_as(log_probs), log_probs)


@fault("every other parent has the probability (1-xi)/(N-1)", Map, build=with_map)
def sample_never_draws_any_of_the_other_parents(sample, self, child, u):
    return self.parents[child]


@fault("every other parent has the probability (1-xi)/(N-1)", Map, build=with_map)
def sample_includes_the_right_parent_among_the_other_parents(sample, self, child, u):
    right = self.parents[child]
    stray = ((u - 0.8) / 0.2 * 4).long().clamp(0, 3)
    return torch.where(u < 0.8, right, stray)


@fault("K_{i->j} = K_i ... K_{j-1}", Tree, build=deep)
def maps_over_several_levels_omit_the_probability_of_the_other_parents(between, self, lower, upper):
    far = between(lower, upper)
    return far if upper == lower + 1 else Map(far.parents, far.num_parents)


@fault("tokens come first, then the states of each level", Tree, build=tree)
def offsets_of_levels_above_the_tokens_are_one_too_high(offsets, self):
    return tuple(offset + (i > 0) for i, offset in enumerate(offsets))


@fault("tokens come first, then the states of each level", Tree, build=tree)
def the_last_state_of_a_level_is_assigned_to_the_level_above(level_of, self, z):
    return torch.bucketize(z + 1, self.ends, right=True)


@fault("the last level contains only the mask", Tree, build=tree)
def num_states_is_one_too_high(num_states, self):
    return sum(self.levels) + 1


@fault("the map over the second edge has the xi of this edge", Tree, build=deep)
def the_map_over_two_levels_has_the_xi_of_its_first_edge(__init__, self, *arguments, **options):
    __init__(*arguments, **options)
    self.composed["0-2"] = parent_map([ABOVE[w] for w in WORDS], 0.8)


@fault("u_i(.|p) = u_{i-1}(.|p) K", Tree, build=deep)
def probabilities_of_a_level_sum_to_less_than_1(level_probs, self, p):
    tokens, *above = level_probs(p)
    return [tokens, *(0.9 * probs for probs in above)]


@fault("u_i(.|p) = u_{i-1}(.|p) K", Tree, build=deep)
def probabilities_of_the_second_level_omit_the_other_parents(level_probs, self, p):
    found = level_probs(p)
    chain = Map(self.between(0, 2).parents, self.levels[2])
    return [*found[:2], chain.push(p), *found[3:]]


@fault("u_i(.|p) is a distribution over each level, tokens first", Tree, build=deep)
def the_tokens_are_missing_among_the_probabilities_of_the_levels(level_probs, self, p):
    return level_probs(p)[1:]


@fault("the states of a level are consecutive", Tree, build=tree)
def the_slice_of_a_level_lacks_its_last_state(states, self, level):
    whole = states(level)
    return slice(whole.start, max(whole.start + 1, whole.stop - 1))


@fault("a state's descendants are the tokens that lead to it", Tree, build=deep)
def descendants_of_a_cluster_are_those_of_the_next_one(under, self, state):
    return under(min(state + 1, self.num_states - 1))


@fault("a state's descendants are the tokens that lead to it", Tree, build=deep)
def descendants_are_in_descending_order(under, self, state):
    return under(state).flip(0)
