"""Products of processes (theory section 23)."""

import sys

import torch
from planting import fault

from ddlib.processes import Masked, Product, Uniform
from ddlib.schedules import Linear

FIELDS = sys.modules["ddlib.processes.product_fields"].Fielded
TABLE = (
    {"a": Masked(4, Linear()), "b": Uniform(2, Linear()), "c": Masked(3, Linear())},
    [0, 2, 1, 0],
)

fault("z is a state plus the offset of its field", Product, *TABLE, within=FIELDS)(
    clean_states_have_no_offset=lambda tokens_as_states, self, x: x,
    states_of_a_group_have_the_gap_of_another_field=lambda _from_group, self, own, field: (
        own + self._starts[field]
    ),
)
fault("entries beyond an alphabet never enter a softmax", Product, *TABLE, within=FIELDS)(
    the_softmax_is_over_the_union=lambda restrict_logits, self, logits, z: logits,
)


@fault("q(z|x) is a product over positions", Product, *TABLE, within=Product)
def balanced_draws_are_taken_for_independent_ones(sample, self, x, t, generator=None, levels=""):
    return sample(x, t, generator, "balanced")


@fault("the prior term is that of each field", Product, *TABLE, within=Product)
def the_prior_term_is_zero(prior_kl, self, x, t=None):
    return torch.zeros(x.shape, dtype=torch.float64)


@fault("noise begins at the prior of each field", Product, *TABLE, within=Product)
def all_fields_begin_with_the_noise_of_the_first(sample_prior, self, shape, *given, **options):
    return sample_prior(shape, *given, **options) * 0 + 4


@fault("ids of a field are checked by its name", Product, *TABLE, within=FIELDS)
def ids_of_other_alphabets_are_accepted(_refuse, self, *given):
    return None
