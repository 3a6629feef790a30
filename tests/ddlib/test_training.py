"""The training loss: the bound, and the papers' changes to it."""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.calls import seeded
from zoo.trees import PARENTS

import ddlib as dd
from ddlib.testing import strategies

LEVELS = dd.presets.hdlm_levels([PARENTS, [0, 1, 1, 0]], xi=[0.8, 1.0])


def batch(process, seed=0, rows=64, t=None):
    generator = seeded(seed)
    x = torch.randint(process.vocab_size, (rows, 3), generator=generator)
    t = dd.sample_times(rows, generator=generator) if t is None else torch.full((rows,), t)
    z = process.sample(x, t, generator)
    logits = torch.randn(rows, 3, process.vocab_size, dtype=torch.float64, generator=generator)
    return logits, x, z, t


@settings(max_examples=examples(30))
@given(strategies.processes(), st.integers(0, 99))
def test_the_default_loss_is_the_mean_of_the_bound(process, seed):
    logits, x, z, t = batch(process, seed, rows=8)
    nelbo = dd.nelbo(process, logits, x, z, t)
    assert torch.allclose(dd.training_loss(process, logits, x, z, t), nelbo.mean(), rtol=1e-9)
    assert torch.allclose(
        dd.training_loss(process, logits, x, z, t, reduction="none"), nelbo, rtol=1e-9
    )


def test_clipping_replaces_the_weight_and_nothing_else():
    process = dd.presets.hdlm(PARENTS)
    logits, x, z, t = batch(process)
    loss = dd.training_loss(
        process, logits, x, z, t, weighting=dd.weightings.Clip(2.0), reduction="none"
    )
    # at gamma = 1 both weights exceed 2 at every t: clip at 2 is a constant weight
    weight = process.weights(t).gather(1, process.level_of(z))
    divergence = dd.nelbo(process, logits, x, z, t) / torch.where(weight > 0, weight, 1.0)
    assert torch.allclose(loss, torch.where(weight > 0, 2.0, 0.0) * divergence)
    raised = dd.training_loss(
        process, logits, x, z, t, weighting=dd.weightings.Clip(5.0, low=5.0), reduction="none"
    )
    assert torch.allclose(raised, 2.5 * loss)


@pytest.mark.parametrize(
    "process", [dd.presets.hdlm(PARENTS), dd.presets.hdlm(PARENTS, xi=0.9), LEVELS], ids=str
)
def test_hard_mode_is_an_upper_bound_above_the_first_level_and_equal_at_it(process):
    logits, x, z, t = batch(process, rows=256)
    standard = dd.training_loss(process, logits, x, z, t, reduction="none")
    hard = dd.training_loss(process, logits, x, z, t, mode="hard", reduction="none")
    level = process.level_of(z)
    assert torch.allclose(hard[level <= 1], standard[level <= 1])
    assert (hard[level >= 2] >= standard[level >= 2] - 1e-12).all() and (
        hard > standard + 1e-3
    ).any()
    weight = process.weights(t).gather(1, level)
    token = -logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
    assert torch.allclose(hard[level >= 2], (weight * token)[level >= 2])


def test_factors_of_levels_scale_token_and_cluster_losses():
    process = dd.presets.hdlm(PARENTS)
    logits, x, z, t = batch(process)
    plain = dd.training_loss(process, logits, x, z, t, reduction="none")
    scaled = dd.training_loss(
        process, logits, x, z, t, weighting=dd.weightings.PerLevel([2.0, 0.5]), reduction="none"
    )
    factor = torch.tensor([0.0, 2.0, 0.5])[process.level_of(z)]
    assert torch.allclose(scaled, factor * plain)


def test_a_users_process_without_a_closed_form_can_be_clipped_too():
    """Its weight is the rate at which z is left backwards given the token.

    For a hierarchy, the level weight.
    """
    hierarchy = dd.presets.hdlm(PARENTS, xi=0.9)
    general = dd.processes.RateMatrix(hierarchy.rate_matrix(0.0), dd.schedules.Linear(), 6)
    logits, x, z, t = batch(hierarchy, rows=8)
    for clip in (None, dd.weightings.Clip(2.5)):
        ours = dd.training_loss(general, logits, x, z, t, weighting=clip)
        assert torch.allclose(
            ours, dd.training_loss(hierarchy, logits, x, z, t, weighting=clip), rtol=1e-5
        )


def test_gradients_reach_the_logits_and_leave_the_inputs_alone():
    logits, x, z, t = batch(LEVELS)
    logits.requires_grad_()
    kept = [v.clone() for v in (logits, x, z, t)]
    dd.training_loss(
        LEVELS, logits, x, z, t, weighting=dd.weightings.Clip(10.0), mode="hard"
    ).backward()
    assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0
    assert all(torch.equal(a, b) for a, b in zip(kept, (logits, x, z, t), strict=True))


def test_gradients_are_those_of_finite_differences():
    uniform = dd.processes.Uniform(6, dd.schedules.Linear())
    for process in (LEVELS, dd.presets.gidd(6, 0.3), dd.presets.hdlm(PARENTS), uniform):
        logits, x, z, t = batch(process, rows=4, t=0.6)
        logits.requires_grad_()
        assert torch.autograd.gradcheck(
            lambda v, p=process, a=(x, z, t): dd.nelbo(p, v, *a), logits, atol=1e-6
        )


def test_training_on_a_distribution_learns_it():
    """The whole loop on one token: the loss's minimum is the entropy, at the true distribution,
    clipped or not.
    """
    probs = torch.tensor([0.4, 0.05, 0.25, 0.1, 0.15, 0.05])
    generator = seeded()
    process = dd.presets.hdlm(PARENTS, xi=0.9)
    logits = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(300):
        x = torch.multinomial(probs, 2048, replacement=True, generator=generator)[:, None]
        t = dd.sample_times(2048, generator=generator)
        z = process.sample(x, t, generator)
        loss = dd.training_loss(
            process, logits.expand(2048, 1, 6), x, z, t, weighting=dd.weightings.Clip(10.0)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.allclose(logits.softmax(0), probs, atol=0.03)
