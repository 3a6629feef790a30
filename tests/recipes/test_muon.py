"""Muon: torch's own up to bfloat16, orthogonal updates, one state with torch's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ddlib_models import DiT
from recipes.config import Optimizer
from recipes.engine.muon import Muon, orthogonal
from recipes.engine.optimizer import optimizers, update

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def walked(kind, shape, **how):
    """Weights of four steps with separate gradients, and the optimizer."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(shape))
    optimizer = kind([weight], lr=0.02, weight_decay=0.1, **how)
    for _ in range(4):
        weight.grad = torch.randn(shape)
        optimizer.step()
    return weight.detach(), optimizer


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_steps_are_torchs_up_to_bfloat16(shape):
    torch.manual_seed(0)
    begun = torch.randn(shape)
    ours, own = walked(Muon, shape)
    theirs, other = walked(torch.optim.Muon, shape, adjust_lr_fn="match_rms_adamw")
    # eight bits of mantissa in each of five steps: far more than float32's rounding, far less than
    # an update
    assert 1e-6 < (ours - theirs).norm() / (theirs - begun).norm() < 0.02
    held = own.state_dict()
    named = other.state_dict()
    torch.testing.assert_close(held["state"], named["state"])
    assert held["param_groups"] == named["param_groups"]


@given(
    rows=st.integers(1, 24),
    columns=st.integers(1, 24),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_singular_values_come_near_one_and_vectors_stay(rows, columns, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    left, _ = torch.linalg.qr(torch.randn(rows, rows, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(columns, columns, generator=generator))
    few = min(rows, columns)
    values = 0.1 + 0.9 * torch.rand(few, generator=generator)
    matrix = scale * (left[:, :few] * values) @ right[:, :few].T
    turned, of_another_scale = orthogonal(torch.stack([matrix, 3 * matrix]), COEFFICIENTS, 5, 1e-7)
    torch.testing.assert_close(of_another_scale, turned, atol=1e-4, rtol=0)
    inner = left[:, :few].T @ turned @ right[:, :few]
    assert ((inner.diagonal() > 0.5) & (inner.diagonal() < 1.3)).all()
    torch.testing.assert_close(inner, inner.diagonal().diag(), atol=1e-4, rtol=0)


def test_weights_of_several_shapes_step_as_each_does_alone():
    def stepped(*shapes):
        weights = [torch.nn.Parameter(torch.full(shape, 0.5)) for shape in shapes]
        optimizer = Muon(weights, lr=0.02, weight_decay=0.1)
        for weight in weights:
            weight.grad = torch.arange(weight.numel(), dtype=torch.float32).sin().view_as(weight)
        optimizer.step()
        return [weight.detach() for weight in weights]

    shapes = [(6, 4), (4, 6), (6, 4), (5, 5)]
    for together, shape in zip(stepped(*shapes), shapes, strict=True):
        torch.testing.assert_close(together, *stepped(shape))


def test_a_weight_without_a_gradient_stays_and_a_closure_is_called():
    weight, other = (torch.nn.Parameter(torch.ones(3, 3)) for _ in range(2))
    optimizer = Muon([weight, other], lr=0.1, weight_decay=0.0)

    def loss():
        value = (weight.tril() ** 2).sum()
        value.backward()
        return value.item()

    assert optimizer.step(loss) == 6.0
    assert not torch.equal(weight, torch.ones(3, 3)) and torch.equal(other, torch.ones(3, 3))


@pytest.mark.parametrize("limit", [1e-2, 1e3], ids=["clipped", "not_clipped"])
@pytest.mark.parametrize("muon", [False, True])
def test_a_norm_above_its_maximum_is_divided_away_in_the_optimizers_pass(limit, muon):
    """Three steps equal those with gradients that ``clip_grad_norm_`` scaled before."""
    ours, theirs = (DiT(7, 6, dim=16, depth=2, heads=2) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    config = Optimizer(lr=1e-2, muon=muon, weight_decay=0.1)
    optimizers_of = [optimizers(model, config) for model in (ours, theirs)]
    for step in range(3):
        for model in (ours, theirs):
            torch.manual_seed(step)
            for weight in model.parameters():
                weight.grad = torch.randn_like(weight)
        gradients = [weight.grad for weight in ours.parameters()]
        excess = (nn.utils.get_total_norm(gradients) / limit).clamp(min=1)
        update(optimizers_of[0], 1e-2, torch.zeros(()), excess)
        nn.utils.clip_grad_norm_(theirs.parameters(), limit)
        update(optimizers_of[1], 1e-2, torch.zeros(()), torch.ones(()))
    for weight, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-5)
