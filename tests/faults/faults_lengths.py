"""Rules for lengths: a row is that of its own noise, keeps its prompt, and shares the call of the step."""

import torch
from planting import fault

from ddlib.samplers import Daedal, RhoEOS

RULE = dict(start=5, step=1, positions=4)


@fault("a row changes by its own predictions", RhoEOS, 1, **RULE)
def the_length_is_that_of_the_whole_batch(observe, self, canvas):
    density = observe(canvas)
    return density.mean().expand_as(density)


@fault("positions are inserted behind the prompt", Daedal, 1, start=3, low=0.9, enough=0.1, step=2, positions=4)
def masks_are_inserted_before_the_prompt(resize, self, canvas, observed, window, k):
    place, count = resize(canvas, observed, window, k)
    return torch.zeros_like(place), count


@fault("the prompt stays", RhoEOS, 1, **RULE)
def a_row_loses_its_prompt_with_its_end(resize, self, canvas, observed, window, k):
    place, count = resize(canvas, observed, window, k)
    return place, torch.where(count < 0, -canvas.length, count)


@fault("one call for the rule and the step", RhoEOS, 1, **RULE)
def the_network_is_evaluated_once_more(observe, self, canvas):
    canvas.run.network(canvas.state.z, canvas.state.t)
    return observe(canvas)
