"""Levels of a hierarchy, and the maps between them (theory section 2)."""

import torch
from planting import ABOVE, WORDS, deep, fault, tree

from ddlib.hierarchies import Hierarchy, Map, Tree, parent_map

ROOT = Map(torch.zeros(4, dtype=torch.int64), 1)


def with_map(cls, xi=0.8):
    """Hierarchy whose first edge is of the class."""
    right = parent_map(WORDS, xi)
    return type("Planted", (Hierarchy,), {})([cls(right.parents, 4, right.keep, right.spread), ROOT], [2.0, 1.0])


@fault("stray mass is (1-xi)/(N-1)")
def the_xi_row_is_not_normalised_as_in_the_papers_code(patch):
    xi, stray = 0.8, 0.2 / 4
    edge = Map(torch.tensor(WORDS), 4, xi - stray, torch.full((4,), stray, dtype=torch.float64))
    return type("Planted", (Hierarchy,), {})([edge, ROOT])


@fault("K_i maps onto its clusters")
def a_cluster_has_no_child(patch):
    return type("Planted", (Hierarchy,), {})([Map(torch.tensor([0, 0, 1, 1, 2, 2]), 4), ROOT])


@fault("K(z|y) for every y", Map, build=with_map)
def the_column_forgets_the_stray_mass(column, self, parent):
    return (self.parents == parent[..., None]).to(torch.float64)


@fault("K(z|y), from child to parent", Map, build=with_map)
def the_entry_is_that_of_the_transposed_map(entry, self, child, parent):
    return entry(parent.clamp_max(self.num_children - 1), child.clamp_max(self.num_parents - 1))


@fault("u_1(.|p) = K p", Map, build=with_map)
def the_push_forgets_the_stray_mass(push, self, probs):
    return torch.zeros(*probs.shape[:-1], 4, dtype=probs.dtype).scatter_add(-1, self.parents.expand_as(probs), probs)


@fault("log u_1(.|p) = log K p", Map, build=with_map)
def the_log_push_adds_logarithms_of_members(log_push, self, log_probs):
    zero = torch.zeros(*log_probs.shape[:-1], 4, dtype=log_probs.dtype)
    return zero.scatter_add(-1, self.parents.expand_as(log_probs), log_probs)


@fault("every other parent with (1-xi)/(N-1)", Map, build=with_map)
def a_drawn_parent_never_strays(sample, self, child, u):
    return self.parents[child]


@fault("every other parent with (1-xi)/(N-1)", Map, build=with_map)
def a_stray_may_fall_on_the_right_parent(sample, self, child, u):
    right = self.parents[child]
    stray = ((u - 0.8) / 0.2 * 4).long().clamp(0, 3)
    return torch.where(u < 0.8, right, stray)


@fault("K_{i->j} = K_i ... K_{j-1}", Tree, build=deep)
def maps_between_distant_levels_lose_the_stray_mass(between, self, lower, upper):
    far = between(lower, upper)
    return far if upper == lower + 1 else Map(far.parents, far.num_parents)


@fault("states are words, then levels", Tree, build=tree)
def offsets_are_one_too_high(offsets, self):
    return tuple(offset + (i > 0) for i, offset in enumerate(offsets))


@fault("states are words, then levels", Tree, build=tree)
def the_last_word_counts_as_a_cluster(level_of, self, z):
    return torch.bucketize(z + 1, self.ends, right=True)


@fault("L_n is the mask alone", Tree, build=tree)
def clusters_are_counted_once_more_as_the_mask(num_states, self):
    return sum(self.levels) + 1


@fault("K_1 of the second edge", Tree, build=deep)
def the_second_edge_repeats_the_first(__init__, self, *arguments, **options):
    __init__(*arguments, **options)
    self.composed["0-2"] = parent_map([ABOVE[w] for w in WORDS], 0.8)
