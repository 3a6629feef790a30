"""Draws of a call: a control may replace them, and every sampler that states so draws by them."""

from dataclasses import replace

import pytest
import torch
from zoo.calls import seeded
from zoo.networks import Halves
from zoo.processes import LEVELS

import ddlib as dd
from ddlib.config import registry
from ddlib.samplers.controls import Control, Needs
from ddlib.samplers.state_draws import Draws, Independent

PROCESS = LEVELS["levels"]
SAMPLERS = [
    sampler
    for name in registry.available("samplers")
    for sampler in registry.get("samplers", name).examples()
    if sampler.guarantees.supports_joint_draws
]


class Firsts(Draws):
    """Draw the first state of each level, the ancestors of token 0."""

    def states(self, predictions, z, target, noise, force, sharpen):
        starts = torch.tensor([0, *PROCESS.levels[:-1]]).cumsum(0)
        for part in predictions:
            yield part, starts[target[part.b, part.i]]

    def log_probs(self, predictions, z, target, force):
        return Independent().log_probs(predictions, z, target, force)


class DrawsFirsts(Control):
    """Replace the draws of a call."""

    needs = Needs.JOINT_DRAWS

    def prepare(self, run):
        return replace(run, draws=Firsts())


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_all_states_are_those_that_the_draws_of_the_call_yield(sampler):
    x = dd.sample(
        PROCESS,
        Halves(PROCESS),
        (5, 4),
        sampler,
        steps=4,
        prompt=torch.tensor([3]),
        controls=[DrawsFirsts()],
        generator=seeded(),
    )
    assert x.tolist() == [[3, 0, 0, 0]] * 5
