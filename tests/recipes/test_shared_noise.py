"""Noise that the tokens of a sequence share, in training: the draws of a batch, and its loss."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from training_runs import loss_of, losses, objective
from zoo.calls import seeded
from zoo.runs import batch_of, recipe_in

import ddlib as dd
from recipes.engine import train
from recipes.engine.objectives.noising import add_noise
from recipes.engine.validation import quietest

PROCESS = dd.presets.hdlm([0, 0, 1, 1, 2, 3], xi=0.8)


def batch(rows=8, length=6):
    return batch_of(torch.randint(6, (rows, length), generator=seeded()))


class Split(nn.Module):
    """A network with a separate output layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(PROCESS.num_states, 5), nn.Linear(5, 6)

    def features(self, z, t):
        return self.embed(z) + self.embed(z).mean(1, keepdim=True)

    def output_weights(self):
        return self.head.weight, self.head.bias

    def forward(self, z, t):
        return self.head(self.features(z, t))


class Whole(nn.Module):
    """The same without saying so."""

    def __init__(self):
        super().__init__()
        self.inside = Split()

    def forward(self, z, t):
        return self.inside(z, t)


@pytest.mark.parametrize("levels", ["independent", "balanced"])
def test_a_batch_meets_the_noise_that_ddlib_draws(levels):
    keyed = dd.KeyedGenerator(3, 4, torch.arange(8))
    t = dd.sample_times(8, generator=keyed)
    z = PROCESS.sample(batch().x, t, keyed, levels=levels)
    found = add_noise(PROCESS, batch(), 3, 4, objective(levels=levels))
    assert torch.equal(found.t, t) and torch.equal(found.z, z)
    balance = PROCESS.importance_weight(found.x, z, t) if levels == "balanced" else torch.ones(8)
    assert torch.equal(found.measure, balance.double())


@pytest.mark.parametrize("network", [Split, Whole])
def test_a_balanced_batch_weighs_its_texts(network):
    """Loss, its parts and gradients, with the output layer fused and without."""
    loss = objective(levels="balanced", weighting="clip:10")
    noisy = add_noise(PROCESS, batch(), 3, 4, loss)
    scale = torch.tensor(0.01)
    assert float(noisy.measure.std()) > 0.01
    kept = torch.arange(48).view(8, 6) % 5 != 0
    trained = network()
    total, parts = loss_of(loss, trained, PROCESS, replace(noisy, mask=kept), scale)
    model = network()
    expected = dd.training_loss(
        PROCESS,
        model(noisy.z, noisy.t),
        noisy.x,
        noisy.z,
        noisy.t,
        dd.weightings.Clip(10.0),
        reduction="none",
    )
    expected = torch.where(kept, expected, 0.0) * noisy.measure[:, None].float()
    torch.testing.assert_close(parts, expected.detach())
    torch.testing.assert_close(total, scale * expected.sum(), check_dtype=False)
    total.backward()
    (scale * expected.sum()).backward()
    for one, other in zip(trained.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_run_with_balanced_levels_trains(tmp_path):
    given = recipe_in(tmp_path, steps=4, loss=dict(levels="balanced"))
    train(given)
    assert len(losses(given.output.folder)) == 4


def test_validation_balances_levels_where_the_process_can():
    class Own(dd.processes.Masked):
        def sample(self, x, t, generator=None):
            return super().sample(x, t, generator)

    assert (
        quietest(PROCESS) == "balanced" and quietest(Own(5, dd.schedules.Linear())) == "independent"
    )
