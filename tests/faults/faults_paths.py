"""Recorded paths of samplers and their probability (theory section 22)."""

import torch
from planting import declare, fault

from ddlib.contrib import Psi
from ddlib.samplers import Ancestral, Remask, trajectory


@fault("weighted by the ratio of paths, the draws of one network are those of another")
def draws_that_are_thrown_away_are_not_in_the_path(patch):
    return declare(Psi, independent_draws=True)(0.5)


@fault("weighted by the ratio of paths, the draws of one network are those of another")
def ascents_that_read_the_network_are_declared_not_to(patch):
    return declare(Remask, independent_draws=True)(1.0, "confidence")


@fault(
    "weighted by the ratio of paths, the draws of one network are those of another",
    Ancestral,
    within=trajectory,
)
def positions_that_stay_have_no_term(step_log_probs, run, z, t, s, after, drawn, force):
    return step_log_probs(run, z, t, s, after, drawn & (after != z), force)


@fault(
    "weighted by the ratio of paths, the draws of one network are those of another",
    Ancestral,
    within=trajectory,
)
def every_second_draw_has_no_term(step_log_probs, run, z, t, s, after, drawn, force):
    even = torch.arange(z.shape[1]) % 2 == 0
    return step_log_probs(run, z, t, s, after, drawn & even, force)
