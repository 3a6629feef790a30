"""Samplers that remask: the formulas of ReMDM and of the Psi-samplers, and distributions that they
keep.
"""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import at, seeded, trajectory
from zoo.networks import Halves
from zoo.processes import F64, LEVELS

import ddlib as dd
from ddlib.contrib import Overshoot, Psi
from ddlib.samplers import Ancestral, Remask
from ddlib.testing import strategies
from ddlib.testing.oracle import exact_cavity

SHARES = st.floats(0.0, 1.0)


@pytest.mark.parametrize("schedule", [dd.schedules.Linear(), dd.schedules.Cosine()])
@pytest.mark.parametrize("rule", ["cap", "rescale"])
def test_for_masks_it_is_remdm(schedule, rule):
    """Wang et al. (2025): a token is masked with sigma.

    A mask becomes a token as often as by its formula.
    """
    process = dd.processes.Masked(5, schedule)
    token = torch.zeros(1, 1, dtype=torch.int64)
    mask = torch.ones(1, 1, dtype=torch.int64)
    for t, s in ((0.9, 0.7), (0.5, 0.45), (0.2, 0.0), (1.0, 0.9)):
        alpha_t, alpha_s = (schedule.alpha(at(time)).item() for time in (t, s))
        most = min(1.0, (1 - alpha_s) / alpha_t) if alpha_t else 1.0
        assert not alpha_t or process.max_remask_prob(at(t), at(s)).item() == pytest.approx(
            most, abs=1e-12
        )
        for eta in (0.0, 0.01, 0.5, 1.0):
            sigma = min(eta, most) if rule == "cap" else eta * most
            lift = Remask(eta, rule).sigma(process.max_remask_prob(at(t), at(s)))
            up = process.level_posterior(token, at(t), at(s), lift)[0, 0]
            down = process.level_posterior(mask, at(t), at(s), lift)[0, 0]
            if alpha_t:
                assert up.tolist() == pytest.approx([1 - sigma, sigma], abs=1e-12)
                want = (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t)
                assert down.tolist() == pytest.approx([want, 1 - want], abs=1e-12)


@settings(max_examples=examples(60))
@given(strategies.processes(), SHARES, SHARES, st.lists(SHARES, min_size=6, max_size=6))
def test_levels_keep_their_distribution_for_every_share_of_remasking(process, one, other, shares):
    s, t = sorted((one, other))
    if not isinstance(process, dd.processes.LevelProcess):
        return
    most = process.max_remask_prob(at(t), at(s))
    lift = most * torch.tensor(shares[: most.shape[1]], dtype=F64)
    assert bool(((most >= 0) & (most <= 1)).all())
    levels = torch.arange(most.shape[1] + 1)[None]
    kernel = process.level_posterior(levels, at(t), at(s), lift)[0]
    before = process.occupancies(at(t))[0]
    after = process.occupancies(at(s))[0]
    assert bool((kernel >= 0).all()) and (before @ kernel - after).abs().max() < 1e-12
    if s == 0:
        assert kernel[before > 1e-300, 1:].max() < 1e-12  # no token ascends from the data


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("force", [False, True])
def test_without_effect_it_is_ancestral_to_the_bit(name, force):
    def drawn(sampler):
        return trajectory(LEVELS[name], Halves(LEVELS[name]), sampler)

    plain = drawn(Ancestral(force))
    for sampler in (
        Remask(0.0, force_transition=force),
        Psi(1.0, force_transition=force),
        Overshoot(0.0, force),
    ):
        assert torch.equal(drawn(sampler), plain)
    assert not torch.equal(drawn(Overshoot(0.5, force)), plain)


def test_without_effect_it_is_ancestral_for_uniform_noise_too():
    process = dd.processes.Uniform(6, dd.schedules.Linear())
    denoiser = exact_cavity(process, torch.tensor([0.1, 0.2, 0.3, 0.2, 0.1, 0.1], dtype=F64))
    plain, *drawn = (
        dd.sample(process, denoiser, (50, 1), sampler, 9, generator=seeded())
        for sampler in (Ancestral(), Psi(1.0), Overshoot(0.0), Psi(0.9), Overshoot(0.5))
    )
    assert [torch.equal(tokens, plain) for tokens in drawn] == [True, True, False, False]


@pytest.mark.parametrize("name", ["masked", "levels", "levels-xi"])
@pytest.mark.parametrize(
    ("sampler", "steps"),
    [(Remask(1.0, "rescale"), 30), (Psi(0.9), 60), (Overshoot(0.5), 30)],
    ids=str,
)
def test_states_move_both_ways_and_only_those_that_come_down_need_the_network(name, sampler, steps):
    process = LEVELS[name]
    halves = Halves(LEVELS[name])
    states = trajectory(process, halves, sampler, shape=(1, 3), steps=steps)
    moves = process.level_of(states.flatten(0, 1)).view_as(states).diff(dim=0)
    assert (moves > 0).any() and (moves < 0).any()
    down = int((moves < 0).any(-1).any(-1).sum())  # steps in which one of the three comes down
    assert halves.calls < steps
    if isinstance(sampler, Remask):
        assert halves.calls <= down
    if isinstance(sampler, Overshoot):
        assert halves.calls == down


def test_a_factor_of_zero_keeps_an_edge_shut():
    process = LEVELS["levels"]
    states = trajectory(
        process,
        Halves(process),
        Remask(1.0, "rescale", lift=[1.0, 0.0, 0.0]),
        shape=(6, 8),
        steps=30,
    )
    level = process.level_of(states.flatten(0, 1)).view_as(states)
    rises = level.diff(dim=0) > 0
    assert rises.any() and set(level[1:][rises].tolist()) == {
        1
    }  # from tokens to their clusters, never further


test_bad_input_is_refused_before_the_network_runs = refuses(r"""
    Remask(1.5) | ValueError | eta is 1.5, must be in \[0, 1\]
    Remask(0.1, "max") | ValueError | rule is 'max', must be one of 'cap', 'rescale'
    Remask(0.1, lift=[2.0]) | ValueError | lift\[0\] is 2.0, must be in \[0, 1\]
    Psi(-0.1) | ValueError | kappa is -0.1, must be in \[0, 1\]
    sampled(LEVELS["levels"], Remask(0.1, lift=[1.0])) | ValueError
        | lift has 1 entries, must have 3
    sampled(dd.presets.gidd(6, 0.2), Remask(0.1)) | TypeError
        | Remask needs a process with levels.*use Psi
""")
