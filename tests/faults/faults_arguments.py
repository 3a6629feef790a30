"""Arguments that do not determine their object, and constants in the state dict."""

from itertools import count

import torch
from planting import WORDS, deep, fault, over, tree

from ddlib.hierarchies import Tree
from ddlib.processes import GIDD, Hierarchical, Masked, Noisy, PerWord, RateMatrix
from ddlib.schedules import Linear, Polynomial
from ddlib.weightings import Clip

COUNT = count(1)
RING = torch.eye(4).roll(1, 0) + 0.5 * torch.eye(4).roll(-1, 0) - 1.5 * torch.eye(4)


@fault(
    "a constant follows from the arguments and is not in the state dict",
    Hierarchical,
    deep(),
    Linear(),
)
def the_level_sizes_are_saved_in_the_state_dict(__init__, self, hierarchy, schedule):
    __init__(hierarchy, schedule)
    self.register_buffer("sizes", torch.tensor(hierarchy.levels))


@fault(
    "a constant of the hierarchy is not in the state dict",
    Tree,
    [WORDS],
    xi=0.8,
    speed=[2.0, 1.0],
    build=over,
)
def the_parents_of_a_map_are_saved_in_the_state_dict(__init__, self, parents, **more):
    __init__(parents, **more)
    for edge in self.maps:
        held = edge.parents
        del edge.parents
        edge.register_buffer("parents", held)


@fault(
    "an average of weights does not change integer constants",
    Tree,
    [[0, 0, 1, 1, 2, 2]],
    xi=0.7,
    build=over,
)
def the_first_state_of_each_level_is_a_non_persistent_buffer(__init__, self, parents, **more):
    __init__(parents, **more)
    held = self.starts
    del self.starts
    self.register_buffer("starts", held, persistent=False)


@fault("equal arguments create equal processes")
def the_constructor_draws_the_powers_at_random(patch):
    class Broken(PerWord):
        def __init__(self, schedule, size):
            super().__init__(schedule, (torch.rand(size) + 0.5).tolist())
            self.size = size

        def small_copy(self, vocab_size):
            return type(self)(self.schedule, vocab_size)

    return Broken(Linear(), 5)


@fault("every argument is stored")
def the_size_is_not_stored(patch):
    class Broken(Masked):
        def __init__(self, size):
            super().__init__(size, Linear())

        def small_copy(self, vocab_size):
            return type(self)(vocab_size)

    return Broken(5)


@fault("a schedule does not depend on earlier objects", Polynomial, 2.0)
def the_power_depends_on_the_number_of_schedules_constructed_before(__init__, self, power):
    __init__(power + 1e-3 * next(COUNT))


@fault("a process is determined by its arguments")
def the_scale_of_the_uniform_noise_is_changed_after_construction(patch):
    process = GIDD(5, 0.2)
    process.scale *= 1.5
    return process


@fault("arguments are stored with all their digits", Clip, 2.125, low=0.25)
def the_arguments_of_a_weighting_are_rounded_to_one_decimal(arguments, self):
    return {name: round(value, 1) for name, value in arguments().items()}


@fault("arguments() contains only names that the constructor takes", raises="TypeError")
def arguments_returns_a_name_that_the_constructor_does_not_take(patch):
    class Broken(Noisy):
        def __init__(self, hierarchy, schedule, share):
            super().__init__(hierarchy, schedule, share)

        def arguments(self):
            return {
                "hierarchy": self.hierarchy,
                "schedule": self.schedule,
                "p_uniform": self.p_uniform,
            }

    return Broken(tree(), Linear(), 0.2)


@fault(
    "loading a state dict compares the schedule and does not replace it", RateMatrix, RING, Linear()
)
def loading_a_state_dict_replaces_the_schedule(set_extra_state, self, state):
    self.schedule = Polynomial(3.0)


@fault("a process with a large vocabulary has no constant in the state dict")
def a_buffer_of_token_counts_is_saved_if_the_vocabulary_is_large(patch):
    class Broken(Masked):
        def __init__(self, vocab_size, schedule):
            super().__init__(vocab_size, schedule)
            if vocab_size > 100:  # the small copy is correct
                self.register_buffer("counts", torch.ones(vocab_size))

        def small_copy(self, vocab_size):
            return type(self)(vocab_size, self.schedule)

    return Broken(300, Linear())
