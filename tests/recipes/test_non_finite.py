"""The error of a loss that is not finite states the position and the term."""

from dataclasses import replace

import pytest
import torch

import ddlib as dd
from ddlib.processes import Masked
from ddlib.schedules import Linear
from ddlib.weightings import Clip
from recipes.engine.non_finite import cause
from recipes.engine.objectives.noising import NoisyBatch

NAN = torch.nan
INF = torch.inf


class Broken(Masked):
    """Masks with a weight or a divergence that is not finite for the token 3."""

    def __init__(self, weight=1.0, divergence=1.0):
        super().__init__(5, Linear())
        self.factors = weight, divergence

    def loss_weight(self, x, z, t):
        return torch.where(x == 3, self.factors[0], 1.0) * super().loss_weight(x, z, t)

    def weighted_divergence(self, logits, x, z, t):
        weight, divergence = super().weighted_divergence(logits, x, z, t)
        return weight, torch.where(x == 3, self.factors[1], 1.0) * divergence


def parts():
    """Two micro-batches of two rows with three positions, all masked but the first."""
    x = torch.tensor([[0, 1, 2], [4, 2, 3]])
    z = torch.where(torch.arange(3) > 0, 5, x)
    part = NoisyBatch(
        x, z, torch.tensor([0.25, 0.5]), torch.ones(2), torch.ones_like(x, dtype=torch.bool)
    )
    return [part, part]


def losses(value):
    """Losses of the two parts; one of the token 3 in the last row."""
    first = torch.ones(2, 3)
    second = torch.ones(2, 3)
    second[1, 2] = value
    return [first, second]


TERMS = {
    "output": (
        Broken(),
        losses(NAN),
        1.0,
        "the output of the network; the weight 2 and the measure 1 are finite",
    ),
    "divergence": (
        Broken(),
        losses(INF),
        1.0,
        "the divergence, as the network gives the state a probability of 0",
    ),
    "process": (
        Broken(divergence=INF),
        losses(INF),
        1.0,
        "the process has a divergence of inf there, even for uniform",
    ),
    "weight": (Broken(weight=INF), losses(INF), 1.0, "its weight is inf"),
    "no weight": (Broken(weight=NAN), losses(NAN), 1.0, "its weight is nan"),
    "measure": (Broken(), losses(INF), INF, "the measure of its time is inf"),
}


@pytest.mark.parametrize(("process", "values", "measure", "term"), TERMS.values(), ids=TERMS)
def test_the_first_token_and_its_term_are_stated(process, values, measure, term):
    noisy = parts()
    noisy[1] = replace(noisy[1], measure=torch.tensor([1.0, measure]))
    told = cause(process, Clip(), noisy, values)
    loss = f"{float(values[1][1, 2]):g}"
    assert told.startswith(
        f"first at row 3, position 2 (x = 3, z = 5, t = 0.5, loss {loss}): {term}"
    )


def test_a_gradient_alone_is_stated():
    assert (
        cause(Broken(), Clip(), parts(), losses(1.0)) == "every loss is finite, the gradient is not"
    )


def test_times_of_positions_are_their_own():
    noisy = parts()
    times = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    noisy[1] = replace(noisy[1], t=times, measure=torch.ones(2, 3))
    assert "(x = 3, z = 5, t = 0.6, loss nan)" in cause(
        dd.presets.mdlm(5), Clip(), noisy, losses(NAN)
    )
