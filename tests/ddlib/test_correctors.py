"""Correctors: their formulas, and distributions that they keep."""

import itertools

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.calls import at, context, generate, seeded
from zoo.joints import PAIR
from zoo.networks import Halves
from zoo.processes import F64, IN_PLACE, every_process
from zoo.samplers import serves

import ddlib as dd
from ddlib.processes import GIDD, ForwardProcess, Masked, Uniform
from ddlib.samplers import Ancestral, Corrected, EdgeBalance, ForwardBackward, Gibbs, SelfCorrection
from ddlib.schedules import Cosine, Linear
from ddlib.testing import strategies
from ddlib.testing.oracle import exact_cavity, exact_posterior

# formulas


@pytest.mark.parametrize("schedule", [Linear(), Cosine()])
def test_forward_backward_masks_as_campbell_et_al_do(schedule):
    process = Masked(4, schedule)
    for t, h, amount in ((0.5, 0.1, 1.0), (0.2, 0.05, 3.0), (0.9, 0.1, 5.0)):
        times = []

        def network(z, t, times=times):
            times.append(float(t[0]))
            return torch.zeros(*z.shape, 4)

        tokens = torch.zeros(1, 200, dtype=torch.int64)
        ForwardBackward(amount).correct(context(process, network, (1, 200)), tokens, at(t), at(h))
        u = min(1.0, t + amount * h)
        assert times == pytest.approx([u], abs=1e-7)
        alpha_t, alpha_u = (float(schedule.alpha(at(time))) for time in (t, u))
        masked = process.level_transition(at(t), at(u))[0, 0, 1]
        assert masked.item() == pytest.approx(1 - alpha_u / alpha_t, abs=1e-12)


@settings(max_examples=examples(60))
@given(strategies.processes(), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 10.0))
def test_edge_balance_keeps_the_distribution_of_every_level(process, t, h, strength):
    if not serves(EdgeBalance(), process):
        return
    sigma = EdgeBalance(strength).sigma(process, at(t), at(h))
    levels = torch.arange(len(process.levels))[None]
    kernel = process.level_posterior(levels, at(t), at(t), sigma)[0]
    probs = process.occupancies(at(t))[0]
    assert bool((kernel >= 0).all()) and (probs @ kernel - probs).abs().max() < 1e-12
    climbs = 1 - process.level_transition(at(t), at(min(1.0, t + h)))[0].diagonal()[:-1]
    want = torch.minimum(strength * climbs, process.max_remask_prob(at(t), at(t))[0])
    assert (sigma[0] - want).abs().max() < 1e-12
    held = probs[:-1] > 1e-12
    assert (
        (kernel.diagonal(1) - sigma[0])[held].abs().max() < 1e-9 if held.any() else True
    )  # no mass goes elsewhere
    assert kernel.triu(2).abs().max() == 0 and kernel.tril(-2).abs().max() == 0


@pytest.mark.parametrize("strength", [0.5, 1.0, 4.0])
def test_for_masks_and_small_steps_edge_balance_is_the_corrector_of_discrete_flow_matching(
    strength,
):
    """Gat et al. (2024) at a fixed t.

    Token to mask B (alpha_t / alpha_u - 1), mask to token B (alpha_t - alpha_u) / (1 -
    alpha_t)."""
    schedule = Cosine()
    token = torch.tensor([[0, 1]])
    process = Masked(3, schedule)
    errors = []
    for h in (1e-2, 1e-3):
        alpha_t, alpha_u = (float(schedule.alpha(at(time))) for time in (0.4, 0.4 + h))
        sigma = EdgeBalance(strength).sigma(process, at(0.4), at(h))
        kernel = process.level_posterior(token, at(0.4), at(0.4), sigma)[0]
        up = strength * (alpha_t / alpha_u - 1)
        down = strength * (alpha_t - alpha_u) / (1 - alpha_t)
        assert kernel[1, 0].item() == pytest.approx(down, rel=1e-12)
        errors.append(abs(float(kernel[0, 1]) / up - 1))
    assert errors[0] < 0.05 and errors[1] == pytest.approx(errors[0] / 10, rel=0.2)


def gibbs_kernels(process, t):
    """The states of two tokens, their joint distribution at t, and the kernel that redraws each of
    them, all dense.
    """
    size = process.num_states
    pairs = torch.tensor(list(itertools.product(range(size), repeat=2)))
    cavity = exact_cavity(process, PAIR)(pairs, at(t, len(pairs))).softmax(-1)
    proposals = process.predictive(cavity, at(t, len(pairs)))
    known = process.reachable_from_all_tokens(torch.arange(size)[None])[0]
    kernels = torch.zeros(2, len(pairs), len(pairs), dtype=F64)
    for row, (pair, position) in enumerate(itertools.product(pairs, range(2))):
        row //= 2
        if known[pair[position]]:
            for state in known.nonzero().flatten():
                other = pair.clone()
                other[position] = state
                kernels[position, row, other[0] * size + other[1]] = proposals[row, position, state]
        kernels[position, row, row] += 1 - kernels[position, row].sum()
    rows = process.predictive(torch.eye(3, dtype=F64)[None], at(t))[0]
    return pairs, (rows.T @ PAIR @ rows).flatten(), kernels


@pytest.mark.parametrize("name", IN_PLACE)
def test_redrawing_one_position_keeps_the_joint_distribution_and_two_at_once_do_not(name):
    pairs, probs, kernels = gibbs_kernels(IN_PLACE[name], 0.4)
    assert probs.sum().item() == pytest.approx(1, abs=1e-12)
    for kernel in kernels:
        assert (probs @ kernel - probs).abs().max() < 1e-15
        assert (
            probs[:, None] * kernel - (probs[:, None] * kernel).T
        ).abs().max() < 1e-15  # detailed balance
    size = IN_PLACE[name].num_states
    moved = kernels.view(2, len(pairs), size, size)
    both = moved[0].sum(-1)[:, :, None] * moved[1].sum(-2)[:, None, :]  # independent of each other
    assert (probs @ both.flatten(1) - probs).abs().max() > 1e-5


@pytest.mark.statistical
@pytest.mark.parametrize("name", IN_PLACE)
def test_draws_of_gibbs_are_those_of_its_kernel(name):
    process = IN_PLACE[name]
    draws = 1500
    pairs, _, kernels = gibbs_kernels(process, 0.4)
    rows = pairs.repeat_interleave(draws, 0)
    run = context(process, exact_cavity(process, PAIR), rows.shape)
    drawn = Gibbs().correct(run, rows, at(0.4, len(rows)), at(0.1, len(rows)))
    target = (drawn[:, 0] * process.num_states + drawn[:, 1]).view(len(pairs), draws)
    counts = torch.stack([torch.bincount(row, minlength=len(pairs)) for row in target])
    chance = kernels.mean(0)
    assert counts[chance == 0].sum() == 0
    assert (
        (counts - draws * chance).abs() <= 5.5 * (draws * chance * (1 - chance)).sqrt() + 1
    ).all()


@pytest.mark.parametrize("select", ["random", "margin"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_network_that_learnt_the_posterior_is_read_as_the_cavity(name, select):
    process = IN_PLACE[name]
    sampler = Corrected(Ancestral(), Gibbs(1, select), 2)
    tokens = generate(process, exact_cavity(process, PAIR), sampler, shape=(50, 2))
    own = exact_posterior(process, PAIR)
    assert torch.equal(
        generate(process, own, sampler, shape=(50, 2), parameterization="posterior"), tokens
    )


@settings(max_examples=examples(40))
@given(strategies.processes())
def test_reachability_agrees_with_the_likelihoods(process):
    states = torch.arange(process.num_states)[None]
    times = torch.linspace(0.05, 0.95, 19, dtype=F64)  # some in each window of an edge
    likelihoods = process.token_likelihood(states.expand(len(times), -1), times)
    possible = (likelihoods > 0).any(0, keepdim=True)
    assert torch.equal(process.reachable_from_all_tokens(states), possible.all(-1))
    tokens = states[:, : process.vocab_size]
    assert torch.equal(process.replaceable(tokens), possible[:, : process.vocab_size].sum(-1) > 1)


@every_process
def test_reachability_agrees_with_the_base_class(process):
    states = torch.arange(process.num_states)[None].expand(2, -1)
    for name, z in (
        ("reachable_from_all_tokens", states),
        ("replaceable", states[:, : process.vocab_size]),
    ):
        assert torch.equal(getattr(process, name)(z), getattr(ForwardProcess, name)(process, z)), (
            name
        )


@pytest.mark.statistical
def test_margins_find_the_token_that_does_not_fit():
    process = GIDD(6, 0.3)
    z = torch.zeros(400, 8, dtype=torch.int64)
    z[:, 3] = 5

    def network(z, t):  # float32, as networks are
        return torch.tensor([6.0, 0, 0, 0, 0, 0]).expand(*z.shape, 6)

    shares = {}
    for select in ("random", "margin"):
        run = context(process, network, z.shape)
        when = at(0.1, 400)
        shares[select] = float(
            (Gibbs(1, select).correct(run, z, when, when)[:, 3] != 5).double().mean()
        )
    assert shares["random"] < 0.2 and shares["margin"] > 0.8


# self-correction


PATTERN = torch.tensor([2, 0, 1, 1])


def sure(z, t):
    """A network that returns the clean sequence."""
    return 3 * torch.nn.functional.one_hot(PATTERN, 4).double().expand(*z.shape, 4)


class Sure(Halves):
    """The same in halves."""

    def features(self, z, t):
        super().features(z, t)
        return sure(z, t)

    def output_weights(self):
        return torch.eye(4).double(), None


def test_self_correction_mends_a_token_at_a_time_until_nothing_is_left():
    process = Uniform(4, Linear())
    z = PATTERN.repeat(3, 1)
    z[1, 0], z[2] = 3, torch.tensor([1, 1, 3, 3])
    halves = Sure(process)
    run = context(process, halves, z.shape)
    once = SelfCorrection(steps=1).end(run, z)
    assert (once != z).sum(1).tolist() == [0, 1, 1]
    halves.calls = halves.sequences = 0
    assert torch.equal(SelfCorrection().end(run, z), PATTERN.expand(3, -1))
    # one call for each token to replace; the last look repeats a call, which the model keeps
    assert (halves.calls, halves.sequences) == (4, 5)


def test_self_correction_stops_without_progress_and_keeps_the_prompt():
    calls = []
    process = Uniform(4, Linear())

    def contrary(z, t):
        calls.append(len(z))
        return 9 * torch.nn.functional.one_hot((z + 1) % 4, 4).double()

    z = torch.zeros(2, 5, dtype=torch.int64)
    free = torch.ones(2, 5, dtype=torch.bool)
    free[:, 0] = False
    tokens = SelfCorrection(patience=3).end(context(process, contrary, z.shape, free=free), z)
    assert calls == [2, 2, 2, 2]  # the first share is a gain, the next three are none
    assert (tokens[:, 0] == 0).all() and (tokens[:, 1:] != 0).any(1).all()


def test_self_correction_acts_on_finished_tokens():
    process = Uniform(4, Linear())
    samplers = Ancestral(), Corrected(Ancestral(), SelfCorrection())
    drawn = [
        dd.sample(process, sure, (50, 4), sampler, 3, generator=seeded()) for sampler in samplers
    ]
    assert (drawn[0] != PATTERN).any() and (drawn[1] == PATTERN).all()
