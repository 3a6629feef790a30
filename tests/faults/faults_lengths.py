"""Rules for lengths: rows are independent, the prompt is kept, and rule and step share a network
call.
"""

import torch
from planting import fault

from ddlib.contrib import Daedal, RhoEOS

RULE = dict(start=5, step=1, positions=4)


@fault("the length of a batch row depends only on its own predictions", RhoEOS, 1, **RULE)
def the_density_of_end_tokens_is_averaged_over_the_batch(observe, self, canvas):
    density = observe(canvas)
    return density.mean().expand_as(density)


@fault(
    "positions are inserted after the prompt",
    Daedal,
    1,
    start=3,
    low=0.9,
    enough=0.1,
    step=2,
    positions=4,
)
def masks_are_inserted_before_the_prompt(resize, self, canvas, observed, window, k):
    place, count = resize(canvas, observed, window, k)
    return torch.zeros_like(place), count


@fault("a change of length keeps the prompt", RhoEOS, 1, **RULE)
def a_row_that_becomes_shorter_also_loses_its_prompt(resize, self, canvas, observed, window, k):
    place, count = resize(canvas, observed, window, k)
    return place, torch.where(count < 0, -canvas.length, count)


@fault("the length rule and the step share one network call", RhoEOS, 1, **RULE)
def the_length_rule_makes_an_additional_network_call(observe, self, canvas):
    canvas.run.network(canvas.state.z, canvas.state.t)
    return observe(canvas)
