"""Theory section 2: levels and the maps between them."""

import torch
from planting import ABOVE, WORDS, deep, fault, tree

from ddlib.hierarchies import Hierarchy, Map, Tree, parent_map

ROOT = Map(torch.zeros(4, dtype=torch.int64), 1)


def with_map(cls, xi=0.8):
    """A hierarchy whose first edge is of the broken class."""
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


@fault("K(z|y) for every y")
def the_column_forgets_the_stray_mass(patch):
    class Broken(Map):
        def column(self, parent):
            return (self.parents == parent[..., None]).to(torch.float64)

    return with_map(Broken)


@fault("K(z|y), from child to parent")
def the_entry_is_that_of_the_transposed_map(patch):
    class Broken(Map):
        def entry(self, child, parent):
            return super().entry(parent.clamp_max(self.num_children - 1), child.clamp_max(self.num_parents - 1))

    return with_map(Broken)


@fault("u_1(.|p) = K p")
def the_push_forgets_the_stray_mass(patch):
    class Broken(Map):
        def push(self, law):
            return torch.zeros(*law.shape[:-1], 4, dtype=law.dtype).scatter_add(-1, self.parents.expand_as(law), law)

    return with_map(Broken)


@fault("log u_1(.|p) = log K p")
def the_log_push_adds_logarithms_of_members(patch):
    class Broken(Map):
        def log_push(self, log_probs):
            zero = torch.zeros(*log_probs.shape[:-1], 4, dtype=log_probs.dtype)
            return zero.scatter_add(-1, self.parents.expand_as(log_probs), log_probs)

    return with_map(Broken)


@fault("every other parent with (1-xi)/(N-1)")
def a_drawn_parent_never_strays(patch):
    class Broken(Map):
        def sample(self, child, u):
            return self.parents[child]

    return with_map(Broken)


@fault("every other parent with (1-xi)/(N-1)")
def a_stray_may_fall_on_the_right_parent(patch):
    class Broken(Map):
        def sample(self, child, u):
            right = self.parents[child]
            stray = ((u - 0.8) / 0.2 * 4).long().clamp(0, 3)
            return torch.where(u < 0.8, right, stray)

    return with_map(Broken)


@fault("K_{i->j} = K_i ... K_{j-1}")
def maps_between_distant_levels_lose_the_stray_mass(patch):
    class Broken(Tree):
        def between(self, lower, upper):
            far = super().between(lower, upper)
            return far if upper == lower + 1 else Map(far.parents, far.num_parents)

    return deep(Broken)


@fault("states are words, then levels")
def offsets_are_one_too_high(patch):
    class Broken(Tree):
        @property
        def offsets(self):
            return tuple(offset + (i > 0) for i, offset in enumerate(super().offsets))

    return tree(Broken)


@fault("states are words, then levels")
def the_last_word_counts_as_a_cluster(patch):
    class Broken(Tree):
        def level_of(self, z):
            return torch.bucketize(z + 1, self.starts[1:-1], right=True)

    return tree(Broken)


@fault("L_n is the mask alone")
def clusters_are_counted_once_more_as_the_mask(patch):
    class Broken(Tree):
        @property
        def num_states(self):
            return sum(self.levels) + 1

    return tree(Broken)


@fault("K_1 of the second edge")
def the_second_edge_repeats_the_first(patch):
    class Broken(Tree):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.composed["0-2"] = parent_map([ABOVE[w] for w in WORDS], 0.8)

    return deep(Broken)
