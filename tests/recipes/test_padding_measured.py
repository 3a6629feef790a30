"""Evaluation without padding: results do not depend on how far rows are filled up."""

import pytest
import torch
from training_runs import objective

import ddlib as dd
from recipes.data import Batch
from recipes.metrics import Terms, measure
from recipes.metrics.likelihood import read

LENGTHS = torch.tensor([6, 2, 5, 1, 4, 6, 3, 3])
TEXT = torch.randint(8, (8, 6), generator=torch.Generator().manual_seed(0))


class Ignoring:
    """Logits that do not depend on padding, the tokens from 6 on."""

    def __init__(self, process):
        self.table = torch.randn(process.num_states, 12, generator=torch.Generator().manual_seed(1))

    def __call__(self, z, t):
        real = torch.arange(z.shape[1]) < LENGTHS[:, None]
        return self.table[z] + torch.where(real[..., None], self.table[z], 0.0).sum(1, keepdim=True)


def batch(length):
    mask = torch.arange(length) < LENGTHS[:, None]
    x = torch.cat([TEXT, torch.full((8, length - 6), 11)], 1)
    return Batch(torch.where(mask, x, 11), mask, torch.ones_like(mask), torch.arange(8))


def close(a: Terms, b: Terms):
    assert torch.equal(a.tokens, LENGTHS) and torch.equal(a.tokens, b.tokens)
    assert torch.allclose(a.nats, b.nats, rtol=1e-5) and a.nats.sum() > 0


@pytest.mark.parametrize("kind", ["mdlm", "gidd"])
def test_the_bound_of_an_evaluation_does_not_depend_on_how_far_rows_are_filled_up(kind):
    process = dd.presets.mdlm(12) if kind == "mdlm" else dd.presets.gidd(12, 0.2)
    found = [
        measure(process, Ignoring(process), [batch(length)], seed=0, replicate=0)
        for length in (6, 11, 40)
    ]
    close(found[0], found[1])
    close(found[0], found[2])


@pytest.mark.statistical
def test_balanced_levels_have_the_same_mean_however_far_rows_are_filled_up():
    process = dd.presets.mdlm(12)
    means = {}
    for length in (6, 20):
        found = [
            measure(
                process, Ignoring(process), [batch(length)], 0, number, levels="balanced"
            ).nats.sum()
            for number in range(100)
        ]
        values = torch.stack(found)
        means[length] = float(values.mean()), float(values.std()) / 10
    (short, error), (long, other) = means.values()
    assert abs(short - long) < 3 * (error**2 + other**2) ** 0.5 < 0.2 * short


def test_the_likelihood_of_an_evaluation_does_not_depend_on_it_either():
    process = dd.presets.mdlm(12)
    order = dd.samplers.LeftToRight()

    class Rows(Ignoring):
        def __call__(self, z, t):  # of some of the rows; padding stands, no real word is 11
            return self.table[z] + torch.where((z != 11)[..., None], self.table[z], 0.0).sum(
                1, keepdim=True
            )

    short, long = (
        read(process, Rows(process), [batch(length)], order, 6, 8)[0] for length in (6, 17)
    )
    close(short, long)


def test_a_recipe_of_a_published_run_counts_padding_as_it_did():
    assert objective().count_padding and "padding counted" in objective().about()
    assert not objective(count_padding=False).count_padding
