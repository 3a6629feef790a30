"""A schedule for each edge: transitions against solvers, windows, occupancies given as formulas,
refusals.
"""

import math
from itertools import pairwise

import mpmath
import pytest
import sympy
import torch
from cases import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import refuses
from scipy.integrate import solve_ivp
from torch import nn

import ddlib as dd
from ddlib.parameterization.logits import posterior_logits
from ddlib.processes import Hierarchical
from ddlib.processes.broadcasting import distinct_times
from ddlib.processes.edge_chain import EdgeChain, TurnChain
from ddlib.processes.level_chain import PowerChain
from ddlib.schedules import Cosine, Linear, Occupancies, Polynomial, Rate, Symbolic, Window
from ddlib.schedules.symbol import TIME
from ddlib.testing import strategies

F64 = torch.float64
TREE = dd.hierarchies.Tree([[0, 0, 1, 1]])
DEEP = dd.hierarchies.Tree([[0, 0, 1, 1, 2, 2], [0, 0, 1]])
ENDS = [1e-8, 1e-4, 0.3, 0.9, 1 - 1e-4, 1 - 1e-8]


def at(*times):
    return torch.tensor(times, dtype=F64)


@pytest.mark.parametrize("shape", [(1,), (40,), (5, 9)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_distinct_times_are_the_distinct_columns(shape, count):
    times = [torch.randint(0, 4, shape).double() / 3 for _ in range(count)]
    expected, place = torch.stack([time.flatten() for time in times]).unique(
        dim=1, return_inverse=True
    )
    columns, which = distinct_times(*times)
    assert torch.equal(torch.stack(columns), expected) and torch.equal(which, place.view(shape))


@settings(max_examples=examples(25), deadline=None)
@given(strategies.per_edge_processes(max_depth=4), st.floats(0.01, 0.98), st.floats(0.0, 1.0))
def test_transitions_solve_the_forward_equation(process, late, fraction):
    """Kolmogorov's forward equation, by an ODE solver that is restarted where a schedule begins or
    ends.
    """
    chain = process.chain
    early = late * fraction
    size = process.hierarchy.depth + 1
    breaks = {end for each in process.schedules for end in each.support}
    assume(all(abs(end - time) > 1e-3 for end in breaks for time in (early, late)))
    times = [early, *sorted(end for end in breaks if early < end < late), late]
    state = torch.eye(size, dtype=F64).numpy()
    for start, end in pairwise(times):
        # a rate is infinite where its schedule ends: stop a little earlier, and let what is left
        # move
        stop = end - 1e-7 if end in breaks else end

        def slope(t, flat):
            return (flat.reshape(size, size) @ chain.rate_matrix(at(t))[0].numpy()).ravel()

        solved = solve_ivp(
            slope, (start, stop), state.ravel(), method="LSODA", rtol=1e-10, atol=1e-13
        )
        state = solved.y[:, -1].reshape(size, size)
    slack = (
        1e-7 if len(times) == 2 else 2e-3
    )  # the time that is left out before a schedule ends, under 1 - sqrt(t)
    got = chain.transition(at(early), at(late))[0]
    assert got.numpy() == pytest.approx(state, abs=slack)
    assert got.sum(-1).tolist() == pytest.approx([1.0] * size, abs=1e-12)


@settings(max_examples=examples(40), deadline=None)
@given(
    strategies.exact_schedules(),
    st.lists(strategies.speeds, min_size=1, max_size=4),
    strategies.times,
    st.floats(0.0, 1.0),
)
def test_equal_schedules_are_the_closed_form_of_one(schedule, speeds, t, fraction):
    one = PowerChain(schedule, speeds)
    many = EdgeChain([schedule] * len(speeds), speeds)
    late = at(t)
    early = at(t * fraction)
    for name, times in {
        "occupancies": (late,),
        "weights": (late,),
        "transition": (early, late),
    }.items():
        exact = getattr(one, name)(*times)
        found = getattr(many, name)(*times)
        # where schedules have a hazard with its rounding error: 1 - t has the error 1e-16
        slack = 1e-10 + 4e-16 / (1 - t)
        assert torch.allclose(found, exact, rtol=slack, atol=1e-290), (name, found, exact)


@pytest.mark.parametrize("t", ENDS)
def test_the_first_cluster_level_in_thirty_digits(t):
    process = Hierarchical(DEEP, [Cosine(), Polynomial(2.0), Symbolic("(1 - t)**0.7*exp(-0.5*t)")])
    with mpmath.workdps(30):
        end = mpmath.mpf(t)
        cuts = [c for c in (1e-3, 0.1, 0.5, 0.9, 1 - 1e-3, 1 - 1e-6) if c < t]
        integral = mpmath.quad(
            lambda u: mpmath.pi / 2 * mpmath.sin(mpmath.pi * u / 2) / (1 - u) ** 2,
            [0, end / 3, *cuts, end],
        )
        exact = float((1 - end) ** 2 * integral)
        flux = float(mpmath.pi / 2 * mpmath.sin(mpmath.pi * end / 2))
    assert float(process.occupancies(at(t))[0, 1]) == pytest.approx(exact, rel=1e-10)
    assert float(process.weights(at(t))[0, 1]) == pytest.approx(flux / exact, rel=1e-10)


def test_the_chain_is_that_of_windows_in_turn_where_they_are():
    assert isinstance(dd.presets.staged([0, 0, 1, 1]).chain, TurnChain)
    assert isinstance(dd.presets.staged([0, 0, 1, 1], overlap=0.2).chain, EdgeChain)
    assert isinstance(Hierarchical(TREE, [Linear(), Cosine()]).chain, EdgeChain)


def test_windows_that_do_not_overlap_are_masked_diffusions_one_after_the_other():
    process = dd.presets.staged_levels([[0, 0, 1, 1, 2, 2], [0, 0, 1]], schedule=Cosine())
    t = torch.linspace(0, 1, 301, dtype=F64)
    left = Cosine().alpha(((3 * t[:, None] - torch.arange(3)).clamp(0, 1)).to(F64))
    exact = torch.cat([left[:, :1], left[:, 1:] - left[:, :-1], 1 - left[:, -1:]], -1)
    assert process.occupancies(t).numpy() == pytest.approx(exact.numpy(), abs=1e-12)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(strategies.exact_schedules(), min_size=2, max_size=4),
    st.data(),
    st.floats(0.0, 1.0),
    strategies.times,
)
def test_windows_in_turn_have_a_closed_form(inner, data, fraction, t):
    """Against the quadrature, for all speeds."""
    size = len(inner) - 1
    cuts = data.draw(st.lists(st.integers(1, 99), min_size=size, max_size=size, unique=True))
    ends = [0.0, *(cut / 100 for cut in sorted(cuts)), 1.0]
    windows = [Window(each, *pair) for each, pair in zip(inner, pairwise(ends), strict=True)]
    drawn = data.draw(st.lists(strategies.speeds, min_size=len(inner), max_size=len(inner)))
    closed = TurnChain(windows, drawn)
    general = EdgeChain(windows, drawn)
    late = at(t, *ends[1:-1])
    slack = 1e-10 + 4e-16 / (1 - t)
    for name, times in {
        "occupancies": (late,),
        "weights": (late,),
        "transition": (late * fraction, late),
    }.items():
        found = getattr(closed, name)(*times)
        exact = getattr(general, name)(*times)
        assert torch.allclose(found, exact, rtol=slack, atol=1e-13), (name, found, exact)


def test_every_cluster_is_drawn_before_the_first_token():
    process = dd.presets.staged([0, 0, 0, 1, 1, 1])
    logits = torch.randn(6, generator=torch.Generator().manual_seed(0))
    times = []
    levels = []

    def keep(step, t, z):
        times.append(float(t[0]))
        levels.append(set(process.level_of(z).flatten().tolist()))

    dd.sample(process, lambda z, t: logits.expand(*z.shape, 6), (64, 16), steps=32, on_step=keep)
    assert all(
        each <= ({1, 2} if t >= 0.5 else {0, 1}) for t, each in zip(times, levels, strict=True)
    )
    assert {0, 1} in levels and {1, 2} in levels


def test_a_posterior_does_not_depend_on_the_time_of_a_state():
    """An order meets masks at times at which the process has none."""
    process = dd.presets.staged([0, 0, 1, 1])
    x = torch.cartesian_prod(*[torch.arange(4)] * 2)
    table = torch.randn(
        process.num_states, 4, generator=torch.Generator().manual_seed(0), dtype=F64
    )

    def network(z, t):
        return 2 * table[z].mean(1, keepdim=True).expand(-1, z.shape[1], -1)

    found = [
        dd.likelihood(
            process, network, x, dd.samplers.LeftToRight(), parameterization=meaning
        ).log_likelihood
        for meaning in ("cavity", "posterior")
    ]
    torch.testing.assert_close(*found)
    z = torch.tensor([[0, 4, 6]])
    logits = torch.zeros(1, 3, 4, dtype=F64)
    expected = torch.tensor([[[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4]], dtype=F64)
    for t in (0.25, 0.75):
        probs = posterior_logits(process, logits, z, torch.tensor([t], dtype=F64)).softmax(-1)
        torch.testing.assert_close(probs, expected)


def test_no_flux_enters_an_empty_level_when_a_window_starts():
    process = Hierarchical(TREE, [Linear(), Window(Linear(), 0.25, 1.0)])
    chain = process.chain
    t = at(0.25)
    occupancies = chain.occupancies(t)
    weights = chain.weights(t)
    inflow = chain.inflow(t)
    assert (occupancies * weights)[0].tolist() == pytest.approx(inflow[0].tolist()) and float(
        inflow[0, 2]
    ) == 0
    assert process.schedules[1].expression().subs(TIME, sympy.Rational(1, 4)) == 1


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_jump_times_have_the_occupancies(overlap):
    process = dd.presets.staged_levels([[0, 0, 1, 1, 2, 2], [0, 0, 1]], overlap, Cosine())
    entries, _ = process.sample_jump_times(
        (200, 200), torch.Generator().manual_seed(1), torch.device("cpu")
    )
    assert bool((entries.diff(dim=-1) >= 0).all()) and float(entries.max()) <= 1
    for t in (0.2, 0.4, 0.7, 0.95):
        level = (entries <= t).sum(-1).flatten()
        found = torch.bincount(level, minlength=4) / len(level)
        assert found.tolist() == pytest.approx(
            process.occupancies(at(t))[0].tolist(), abs=5 * math.sqrt(0.25 / 40_000)
        )


@pytest.mark.parametrize("overlap", [0.0, 0.4])
def test_bounds_have_the_stated_error_and_are_the_entropy(overlap):
    """Tokens are uniform and independent, so the bound of a uniform network is the entropy
    exactly.
    """
    process = dd.presets.staged([0, 0, 0, 0, 1, 1, 1, 1], overlap)
    x = torch.randint(8, (256, 16), generator=torch.Generator().manual_seed(0))
    density = process.time_density(16)

    def network(z, t):
        return torch.zeros(*z.shape, 8)

    found = dd.bound(process, network, x, torch.Generator().manual_seed(1), density=density)
    per_sequence = found.total.mean(1)
    error = float(per_sequence.std() / 16)
    assert (
        abs(float(per_sequence.mean()) - math.log(8)) < 4 * error and error < 0.08
    )  # 0.1 under uniform times


g = sympy.Symbol("g", positive=True)
FAMILIES = {
    "paper, gamma 2": (["(1 - t)**2", "2*t*(1 - t)"], ["2/(1 - t)", "1/(1 - t)"]),
    "paper, gamma 1": (["1 - t", "-(1 - t)*log(1 - t)"], ["1/(1 - t)", "1/(1 - t)"]),
    "paper, gamma 3": (["(1 - t)**3", "3/2*((1 - t) - (1 - t)**3)"], ["3/(1 - t)", "1/(1 - t)"]),
    "logistic": (["1 - t", "t*(1 - t)"], ["1/(1 - t)", "2/(1 - t)"]),
    "cosine, cluster a share": (
        ["cos(pi*t/2)", "(1 - cos(pi*t/2))*(1 - t)"],
        ["pi/2*tan(pi*t/2)", None],
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_formulas_give_the_process_of_these_occupancies(name):
    formulas, rates = FAMILIES[name]
    derived = Occupancies(formulas)
    process = Hierarchical.from_occupancies(TREE, formulas)
    for found, expected in zip(derived.rates, rates, strict=True):
        if expected is not None:
            assert sympy.simplify(found - sympy.sympify(expected, locals={"t": TIME})) == 0
    occupancies = process.occupancies(at(*ENDS))
    weights = process.weights(at(*ENDS))
    for row, t in enumerate(ENDS):
        exact = [
            float(each.subs(TIME, sympy.Float(t, 40)).evalf(30)) for each in derived.occupancies
        ]
        assert occupancies[row, :2].tolist() == pytest.approx(exact, rel=1e-10)
        exact = [float(each.subs(TIME, sympy.Float(t, 40)).evalf(30)) for each in derived.weights]
        assert weights[row, 1:].tolist() == pytest.approx(exact, rel=1e-8)
    again = dd.build("processes", dd.values(process))
    assert torch.equal(again.occupancies(at(*ENDS)), occupancies)
    again.load_state_dict(process.state_dict())


def test_a_rate_does_not_depend_on_the_precision_of_the_caller():
    plain = Rate("2*t/(1 - t**2) + 1/2")
    with mpmath.workdps(40):
        other = Rate("2*t/(1 - t**2) + 1/2")
    t = torch.linspace(0, 1, 1001, dtype=F64)
    assert torch.equal(plain.rate(t), other.rate(t)) and torch.equal(
        plain.hazard(t), other.hazard(t)
    )


@pytest.mark.parametrize("alpha", ["1 - t", "(1 - t)**3", "cos(pi*t/2)"])
def test_mask_time_uniform_after_the_tokens_jump(alpha):
    """The paper's noise: given that a token jumped at tau, its mask time is uniform on (tau, 1)."""
    process = Hierarchical(TREE, [Symbolic(alpha), Rate("1/(1 - t)")])
    t = sympy.Symbol("t", positive=True)
    slope = sympy.lambdify(t, -sympy.diff(sympy.sympify(alpha, locals={"t": t}), t), "mpmath")
    for time in (1e-8, 0.2, 0.7, 0.999):
        exact = mpmath.quad(lambda u, end=time: slope(u) * (1 - end) / (1 - u), [0, time / 2, time])
        assert float(process.occupancies(at(time))[0, 1]) == pytest.approx(float(exact), rel=1e-10)


def test_plain_values_hold_a_list_of_schedules():
    tree = {"kind": "tree", "parents": [[0, 0, 1, 1]]}
    schedules = ["cosine", {"kind": "polynomial", "power": 2}]
    process = dd.build(
        "processes", {"kind": "hierarchical", "hierarchy": tree, "schedule": schedules}
    )
    assert [type(each).__name__ for each in process.schedules] == ["Cosine", "Polynomial"]
    assert dd.values(dd.build("processes", dd.values(process))) == dd.values(process)
    assert dd.values(process)["schedule"][1] == {"kind": "polynomial", "power": 2.0}
    with pytest.raises(ValueError, match=r"state dict is of another Hierarchical: schedule"):
        process.load_state_dict(
            Hierarchical(process.hierarchy, [Cosine(), Polynomial(3.0)]).state_dict()
        )


@settings(max_examples=examples(20), deadline=None)
@given(strategies.exact_schedules(), st.floats(0, 0.9), st.floats(0.05, 1.0), st.floats(0, 1))
def test_a_window_is_its_schedule_in_another_time(schedule, start, length, u):
    end = min(1.0, start + length)
    window = Window(schedule, start, end)
    t = at(start + (end - start) * u)
    inner = (t - start) / (end - start)
    assert torch.allclose(window.alpha(t), schedule.alpha(inner.clamp(0, 1)), atol=1e-12)
    assert float(window.alpha(at(start * 0.99))) == 1 and float(window.alpha(at(1.0))) == 0
    assert torch.allclose(
        window.inverse(at(0.3)), start + (end - start) * schedule.inverse(at(0.3))
    )


def test_a_window_of_a_window_has_the_support_of_both():
    """So windows that it leaves free are filled, or refused."""
    nested = Window(Window(Linear(), 0.37, 1.0), 0.0, 0.6)
    t = at(0.1, 0.3, 0.45, 0.6, 0.8)
    assert nested.support == pytest.approx((0.222, 0.6))
    found, flat = (
        Hierarchical(TREE, [each, Linear()]) for each in (nested, Window(Linear(), 0.37 * 0.6, 0.6))
    )
    torch.testing.assert_close(found.occupancies(t), flat.occupancies(t), rtol=1e-12, atol=1e-12)
    in_turn = Hierarchical(
        TREE, [Window(Window(Linear(), 0.0, 0.5), 0.0, 0.6), Window(Linear(), 0.3, 1.0)]
    )
    assert isinstance(in_turn.chain, TurnChain)


@pytest.mark.parametrize("ends", [(0.1 + 0.2, 0.3), (0.3, 0.1 + 0.2)])
def test_windows_that_touch_up_to_rounding_have_a_density(ends):
    touching, exact = (
        Hierarchical(TREE, [Window(Linear(), 0, end), Window(Linear(), start, 1)]).time_density(8)
        for end, start in (ends, (0.3, 0.3))
    )
    torch.testing.assert_close(touching.masses, exact.masses, rtol=1e-6, atol=0)


test_refusals = refuses(
    r"""
    Hierarchical(TREE, [Linear()]) | ValueError | holds 1 schedules, must be one schedule
    Hierarchical(TREE, [Linear()] * 3) | ValueError
        | holds 3 schedules, must be one schedule, or hold one for each of the 2 edges
    Masked(8, "linear") | TypeError | schedule is 'linear', must be a ddlib.schedules.Schedule
    Hierarchical(TREE, []) | ValueError | holds 0 schedules
    Hierarchical(TREE, [Linear(), 3]) | TypeError | schedule\[1\] is 3
    Hierarchical(TREE, [Linear(), Window(Linear(), 0, 0.5)]) | ValueError
        | schedule\[1\] ends at 0.5, must end no
      earlier
    Hierarchical(TREE, [Window(Linear(), 0, 0.4), Window(Linear(), 0, 0.8)]) | ValueError
        | schedule\[1\] ends at 0.8,
      must end at 1
    Hierarchical(TREE, [Window(Linear(), 0, 0.3), Window(Linear(), 0.4, 1)]) | ValueError
        | from t = 0.3 to 0.4
    Hierarchical(TREE, [Window(Linear(), 0.1, 0.5), Window(Linear(), 0.5, 1)]) | ValueError
        | from t = 0 to 0.1
    Hierarchical(TREE, [Window(Window(Linear(), 0.5, 1), 0, 0.5), Window(Linear(), 0.5, 1)])
        | ValueError | 0 to 0.25
    Hierarchical(TREE, [Linear(), Geometric()]) | ValueError
        | schedule\[1\] is Geometric.*must be 1 at its start
    Hierarchical(TREE, [Linear(), Symbolic("exp(-t/(1-t))")]) | ValueError
        | 0 in float64 before its end
    Masked(4, Window(Linear(), 0, 0.5)) | ValueError | acts from t = 0 to 0.5, must act from 0 to 1
    Uniform(4, Window(Linear(), 0.5, 1)) | ValueError | acts from t = 0.5 to 1, must act from 0 to 1
    RateMatrix([[-1.0, 1.0], [1.0, -1.0]], Window(Linear(), 0, 0.5)) | ValueError
        | must act from 0 to 1
    PerWord(Window(Linear(), 0, 0.5), [1.0, 1.0]) | ValueError | must act from 0 to 1
    Noisy(TREE, [Linear(), Linear()], 0.2) | TypeError | schedule is \[Linear
    Window(Linear(), 0.5, 0.5) | ValueError | is too short
    Window(Linear(), -0.1, 0.5) | ValueError | start is -0.1
    Window(Geometric(), 0, 0.5) | ValueError | must be 1 at its start and 0 at its end
    Window(3, 0, 0.5) | TypeError | schedule is 3
    Rate("t") | ValueError | integral 0.5 over time, must be infinite
    Rate("1/(1-t) - 2") | ValueError | is -1 at t = .*must be a rate
    dd.presets.staged([0, 0, 1, 1], overlap=1.5) | ValueError | overlap is 1.5
    dd.presets.staged([[0, 0, 1, 1], [0, 0]]) | ValueError | staged_levels
    Hierarchical.from_occupancies(TREE, "1 - t") | TypeError
        | formulas is '1 - t', must be a list of one formula
    Hierarchical.from_occupancies([[0, 0, 1, 1]], ["1 - t", "t*(1-t)"]) | TypeError
        | hierarchy is \[\[0, 0, 1, 1\]\]
    Hierarchical.from_occupancies(TREE, ["1 - t"]) | ValueError
        | holds 1 formulas, must hold one for each of the 2
    Hierarchical.from_occupancies(TREE, ["1 - t", "t"]) | ValueError
        | formulas\[1\] = t tends to 1 at t = 1, must be 0
    Hierarchical.from_occupancies(TREE, ["t", "1 - t"]) | ValueError
        | formulas\[0\] = t tends to 0 at t = 0, must be 1
    Hierarchical.from_occupancies(TREE, ["(1-t)**2", "3*t*(1-t)"]) | ValueError
        | flux over edge 1, from level 1 to 2,
      is -0.99.* at t = 1e-06
    Hierarchical.from_occupancies(TREE, ["1 - t**2", "-0.1*t*(1-t)"]) | ValueError
        | formulas\[1\] is -.* at t =
    Hierarchical.from_occupancies(DEEP, ["1 - t", "t*(1-t)", "2*t**2*(1-t)"]) | ValueError
        | flux over edge 2
    Hierarchical.from_occupancies(Tree([[0, 0, 1]], speed=[2.0, 1.0]), ["1-t", "t*(1-t)"])
        | ValueError | speed of the
      hierarchy is \(2.0, 1.0\), must be 1
    """
)


class Learned(nn.Module, dd.schedules.Schedule):
    """A power that is learned."""

    def __init__(self):
        super().__init__()
        self.power = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def alpha(self, t, xp=torch):
        return (1 - t) ** self.power


def test_a_schedule_for_each_edge_is_not_learned():
    """Its transitions are tabulated once, with no gradient and for the first value alone."""
    tree = dd.hierarchies.Tree([[0, 0, 1]])
    assert [name for name, _ in Hierarchical(tree, Learned()).named_parameters()]
    for own in (Learned(), Window(Learned(), 0.0, 0.5)):
        with pytest.raises(TypeError, match=r"schedule\[0\] is .* has parameters, must have none"):
            Hierarchical(tree, [own, Linear()])
