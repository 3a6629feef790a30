"""Solvers by rates and of second order: formulas, convergence of the error, network calls."""

import math
from itertools import pairwise, product

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import at, generate, row_by_row, seeded, trajectory
from zoo.networks import Halves, plain
from zoo.processes import F64, LEVELS, Plain, V

import ddlib as dd
from ddlib.contrib import Psi, ThetaTrapezoidal
from ddlib.processes import GIDD, ForwardProcess, Masked, RateMatrix, Uniform
from ddlib.samplers import Ancestral, Euler, TauLeaping
from ddlib.schedules import Linear
from ddlib.testing import strategies
from ddlib.testing.oracle import exact_cavity
from ddlib.verification.claims.samplers.transition_kernel import CLAIMS, STRONG, errors, runs
from ddlib.verification.framework.cases import Case
from ddlib.verification.framework.inputs import frequencies, tally

SOLVERS = {"euler": Euler(), "tau": TauLeaping(), "trapezoid": ThetaTrapezoidal()}
SMALL_THETA = ThetaTrapezoidal(0.3)
OTHERS = {
    "gidd": GIDD(V, p_uniform=0.3),
    "masked-gidd": GIDD(V, p_uniform=0.0),
    "uniform": Uniform(V, Linear()),
    "plain": Plain(GIDD(V, p_uniform=0.3)),  # at t = 1 exactly no token is left
    "rates": RateMatrix(torch.ones(V + 1, V + 1) - (V + 1) * torch.eye(V + 1), Linear(), V),
}
every_solver = pytest.mark.parametrize("sampler", SOLVERS.values(), ids=SOLVERS.keys())


def pairs(names):
    """Names of processes with names of solvers."""
    return pytest.mark.parametrize(("name", "kind"), list(product(names, SOLVERS)))


def some_network(process):
    table = torch.randn(process.num_states, process.vocab_size, generator=seeded(3))
    return lambda z, t: table[z] + table[z.roll(1, -1)] * (1 + t[:, None, None])


@pytest.mark.parametrize(("t", "s"), [(0.9, 0.7), (0.5, 0.1), (0.3, 0.29)])
def test_on_a_linear_schedule_a_mask_jumps_at_rate_one_over_t(t, s):
    process = Masked(5, Linear())
    z = torch.tensor([[5, 2]])
    assert process.exit_rate(z, at(t))[0].tolist() == pytest.approx([1 / t, 0], abs=1e-12)
    texts = torch.arange(6)[:, None]
    predict = exact_cavity(process, torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1], dtype=F64))
    kernels = {
        type(x): x.kernel(process, predict, texts, at(t, 6), at(s, 6))[5]
        for x in (Euler(), TauLeaping())
    }
    hits = (t - s) / t
    assert float(kernels[Euler][5]) == pytest.approx(1 - hits, abs=1e-12)
    assert float(kernels[TauLeaping][5]) == pytest.approx(1 - hits * math.exp(-hits), abs=1e-12)
    assert kernels[Euler].tolist() == pytest.approx(
        Ancestral().kernel(process, predict, texts, at(t, 6), at(s, 6))[5]
    )


def test_chances_of_a_jump():
    hits = torch.tensor([[0.0, 0.25, 1.0, 3.0, 1e16]], dtype=F64)
    assert Euler().chance(hits).tolist() == [[0.0, 0.25, 1.0, 1.0, 1.0]]
    assert TauLeaping().chance(hits).tolist()[0] == pytest.approx(
        [0, 0.25 * math.exp(-0.25), math.exp(-1), 3 * math.exp(-3), 0], abs=1e-15
    )


@settings(max_examples=examples(40))
@given(st.data(), strategies.processes(max_words=6), st.floats(0.02, 0.98))
def test_rates_and_destinations_with_structure_are_those_without(data, process, time):
    z = torch.arange(process.num_states)[None]
    logits = data.draw(strategies.token_logits(1, process.num_states, process.vocab_size))
    rates = ForwardProcess._rates(process, logits, z, at(time), lambda p: p)
    dense = rates.sum(-1)
    got = process.exit_rate(z, at(time), logits)
    assert ((got - dense).abs() <= 1e-12 * (1 + dense)).all()
    each = 1500
    moves = rates.sum(-1) > 0
    many = [value.expand(each, *value.shape[1:]) for value in (logits, z, at(time), moves)]
    drawn = process.sample_exit(*many, seeded())
    p = (rates / torch.where(moves, dense, 1.0)[..., None])[0][moves[0]]
    assert torch.equal(drawn[:, ~moves[0]], many[1][:, ~moves[0]])
    found = frequencies("destinations", (), tally(drawn[:, moves[0]], process.num_states), p, each)
    assert ((found.got - found.expected).abs() <= found.allowed).all()


def slopes(sampler, run, first, **options):
    found = errors(Case(sampler, *run[1:]), [first, 2 * first, 4 * first], **options)
    return [math.log2(coarse / fine) for coarse, fine in pairwise(found)]


@pytest.mark.parametrize(
    "sampler",
    [Ancestral(), *SOLVERS.values(), SMALL_THETA],
    ids=repr,
)
def test_the_error_falls_as_the_steps_to_the_order(sampler):
    for run in runs(Ancestral()):
        for slope in slopes(sampler, run, 8):
            better = (
                isinstance(run.process, Masked) or sampler.order == 2
            )  # by chance of a half, and of few steps
            assert sampler.order - 0.3 < slope < sampler.order + (1.1 if better else 0.3)


def test_theta_trapezoidal_is_exact_for_masks_on_a_linear_schedule():
    process = Masked(3, Linear())
    for theta in (0.2, 0.5, 0.7):
        assert max(errors(Case(ThetaTrapezoidal(theta), process), [1, 2, 5])) < 1e-12


def test_strong_dependence_is_cut_off_and_the_order_is_one_again():
    process = Masked(3, Linear())
    run = Case(ThetaTrapezoidal(), process)
    trapezoid, ancestral = (
        errors(run._replace(subject=x), [8], joint=STRONG)[0] for x in (run.subject, Ancestral())
    )
    assert all(0.8 < slope < 1.3 for slope in slopes(run.subject, run, 8, joint=STRONG))
    assert trapezoid < ancestral / 3  # and still worth a second call


@pairs(OTHERS)
def test_prompts_stand_and_words_come_out(name, kind):
    process = OTHERS[name]
    sampler = SOLVERS[kind]
    prompt = torch.tensor([[1, 4], [0, 2], [3, 3]])
    for options in ({}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.8}):
        states = []
        tokens = generate(
            process,
            some_network(process),
            sampler,
            (3, 6),
            steps=5,
            prompt=prompt,
            on_step=lambda k, t, z, states=states: states.append(z),
            **options,
        )
        assert tokens.shape == (3, 6) and bool((tokens < V).all()) and len(states) == 6
        assert all(torch.equal(z[:, :2], prompt) for z in [*states, tokens])


@pairs(LEVELS)
def test_the_halves_of_a_denoiser_agree_with_the_whole(name, kind):
    sampler = SOLVERS[kind]
    process = LEVELS[name]
    halves = Halves(LEVELS[name])
    for options in ({}, {"temperature": 0.7}, {"prompt": torch.tensor([1, 2])}):
        tokens = generate(process, halves, sampler, **options)
        assert halves.whole == 0 and bool((tokens < V).all())
        assert torch.equal(tokens, generate(process, plain(halves), sampler, **options))
        halves.whole = 0


@pairs({"levels-xi": 0, **OTHERS})
def test_a_batch_never_changes_a_text(name, kind):
    process = {**LEVELS, **OTHERS}[name]
    sampler = SOLVERS[kind]
    whole = generate(process, some_network(process), sampler)
    assert torch.equal(row_by_row(process, some_network(process), sampler), whole)


@pairs(LEVELS)
def test_a_step_in_which_no_position_moves_makes_no_call(name, kind):
    process = LEVELS[name]
    sampler = SOLVERS[kind]
    halves = Halves(process)
    states = trajectory(process, halves, sampler, shape=(1, 3), steps=40)
    level = process.level_of(states.flatten(0, 1)).view_as(states)
    falls = (level.diff(dim=0) < 0).any(-1).any(-1).sum()
    assert bool((level.diff(dim=0) <= 0).all())
    calls = halves.calls - (
        not process.exact_ends
    )  # tokens that the schedule does not reach need a last one
    assert (
        int(falls)
        <= calls
        <= sampler.guarantees.max_model_calls * int(falls)
        < 40 * sampler.guarantees.max_model_calls
    )


@pytest.mark.parametrize("sampler", [Euler(), TauLeaping()], ids=["euler", "tau"])
def test_jumps_by_rates_lead_one_level_down_but_in_the_first_and_last_step(sampler):
    process = LEVELS["levels"]
    states = trajectory(process, Halves(process), sampler, shape=(40, 8), steps=3)
    falls = -process.level_of(states.flatten(0, 1)).view_as(states).diff(dim=0)
    assert falls[1].max() == 1 and falls[0].max() > 1 and falls[2].max() > 1


def test_the_second_look_is_taken_only_where_the_second_stage_moves():
    process = LEVELS["levels-xi"]
    halves = Halves(process)
    calls = []
    dd.sample(
        process,
        lambda z, t: (calls.append((len(z), float(t[0]))), halves(z, t))[1],
        (6, 4),
        ThetaTrapezoidal(0.25),
        steps=torch.tensor([1.0, 0.6, 0.2, 0.0]),
        generator=seeded(),
    )
    times = [1.0, 0.9, 0.6, 0.5, 0.2, 0.15]
    assert [t for _, t in calls] == pytest.approx(
        times, abs=1e-6
    )  # at t and at u = t - theta (t - s)
    assert all(number <= 6 for number, _ in calls) and min(number for number, _ in calls) < 6


@pytest.mark.parametrize(
    "process", [LEVELS["levels-xi"], OTHERS["uniform"]], ids=["levels-xi", "uniform"]
)
@pytest.mark.parametrize("name", ["euler", "trapezoid"])
def test_a_posterior_network_samples_as_the_cavity_network_it_belongs_to(process, name):
    def cavity(z, t):
        return some_network(process)(z, t).double()

    def posterior(z, t):
        return cavity(z, t) + process.token_likelihood(z, t.to(F64)).clamp_min(1e-300).log()

    drawn = [
        generate(process, network, SOLVERS[name], (20, 4), parameterization=meaning)
        for network, meaning in ((cavity, "cavity"), (posterior, "posterior"))
    ]
    assert (drawn[0] == drawn[1]).float().mean() > 0.95  # but for times in float32


@every_solver
def test_logits_of_children_serve_as_well(sampler):
    process = LEVELS["levels"]
    table = torch.randn(process.num_states, process.num_states - 1, generator=seeded(1))
    tokens = generate(process, lambda z, t: table[z], sampler, (30, 4), parameterization="children")
    states = trajectory(
        process, lambda z, t: table[z], sampler, shape=(30, 4), parameterization="children"
    )
    assert bool((tokens < V).all())
    for before, after in pairwise(states):
        above = process.likelihood(before, after.clamp_max(V - 1), at(0.5, 30)) > 0
        assert bool((above | (after >= V)).all())  # no token leaves its cluster


test_bad_input_is_refused = refuses(r"""
    ThetaTrapezoidal(0.0) | ValueError | theta is 0.0, must be in \(0, 1\)
    ThetaTrapezoidal(1) | ValueError | theta is 1, must be in \(0, 1\)
    ThetaTrapezoidal(float("nan")) | ValueError | theta is nan
    ThetaTrapezoidal("half") | TypeError | theta is 'half'
    Psi().kernel(*[None] * 5) | TypeError
        | Psi has no method that returns the distribution of its step
""")


def test_properties_of_the_solvers():
    assert [s.order for s in (Ancestral(), Euler(), TauLeaping(), ThetaTrapezoidal(), Psi())] == [
        1,
        1,
        1,
        2,
        0,
    ]
    assert [s.order for s in (Ancestral(True), Euler(True))] == [
        0,
        0,
    ]  # a forced step has no transition distribution
    assert [s.guarantees.exact_marginals for s in SOLVERS.values()] == [False, False, True]
    assert (
        ThetaTrapezoidal().guarantees.max_model_calls == 2
        and repr(ThetaTrapezoidal()) == "ThetaTrapezoidal(theta=0.5)"
    )


@every_solver
def test_draws_follow_the_kernel_in_the_first_and_in_the_last_step_too(sampler):
    run = runs(sampler)[1]
    check = CLAIMS[0].check(run, full=True)
    assert check.name == "steps" and check.ok, str(check)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("sampler", [*SOLVERS.values(), SMALL_THETA], ids=repr)
def test_each_is_verified(sampler):
    report = dd.verify(sampler)
    assert report.ok, str(report)
    assert [check.ok for check in report.checks if check.name in ("steps", "order")] == [True] * 6
