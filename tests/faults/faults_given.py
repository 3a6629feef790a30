"""Given tokens that are noised or have a loss (theory section 21)."""

import sys

from planting import fault

from ddlib.kernels.api import Hidden
from ddlib.processes import Masked, Uniform
from ddlib.schedules import Linear

TRAINING, BOUND = (sys.modules[f"ddlib.objective.{name}"] for name in ("training", "bound"))

fault("a given token has no loss", Uniform, 4, Linear(), within=TRAINING)(
    given_tokens_count_in_the_loss=lambda free_positions, x, mask, given: mask,
)
fault("z_G = x_G in the bound", Masked, 4, Linear(), within=BOUND)(
    given_tokens_are_noised_in_the_bound=lambda hold_given, x, z, t, given, block=None: (z, t),
)
fault("the bound has no term at given tokens", Masked, 4, Linear(), within=BOUND)(
    given_tokens_have_a_term_of_the_bound=lambda free_positions, x, mask, given: mask,
)


@fault("the mean is over the tokens that are not given", Uniform, 4, Linear(), within=Hidden)
def the_fused_mean_is_over_all_tokens(mean, self, inputs):
    return mean(inputs) * inputs.mask.sum() / inputs.x.numel()
