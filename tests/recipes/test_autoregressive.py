"""Recipe of the autoregressive baseline, and the paper's BASE."""

import pytest
import torch
from training_runs import loss_of
from zoo.runs import batch_of

import ddlib as dd
from ddlib_models import DiT, sizes
from recipes import lm1b, owt
from recipes.config.paces import make_pace
from recipes.engine.objectives.noising import add_noise


@pytest.mark.parametrize("module", [owt, lm1b])
def test_the_loss_is_cross_entropy_of_each_token_given_those_on_its_left(module):
    """Where a token is masked: all but a thousandth of them.

    With the weight 1 / t, at most 1.001.
    """
    recipe = module.recipes()["ar"][1]
    process = dd.presets.mdlm(11)
    vocab = 11
    length = 6
    torch.manual_seed(0)
    network = DiT(
        12,
        vocab,
        dim=16,
        depth=2,
        heads=2,
        block_size=recipe.network["block_size"],
        time_conditioned=False,
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    x = torch.randint(vocab, (32, length))
    noisy = add_noise(
        process, batch_of(x), 0, 0, recipe.objective(), None, make_pace(recipe.pace), at_once=True
    )
    _, losses = loss_of(recipe.objective(), network.eval(), process, noisy, torch.tensor(1.0))
    masked = noisy.z == vocab
    assert masked.float().mean() > 0.98
    exact = -dd.likelihood(process, network, x, dd.samplers.LeftToRight(), group=1).per_position
    torch.testing.assert_close(losses[masked], exact[masked].to(losses), rtol=2e-3, atol=1e-5)


def test_base_has_the_numbers_of_the_paper():
    small = owt.recipes()["hdlm"][1]
    base = owt.recipes()["hdlm-base"][1]
    assert base.model.items() >= sizes.base().items() and base.process["clusters"] == 128
    for name in ("batch", "steps", "data", "optimizer", "loss"):
        assert getattr(base, name) == getattr(small, name)
    assert base.output.folder.name == "hdlm-base"
