"""Schedules: everything a clock says follows from the one line that writes alpha."""

import pickle

import mpmath
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import ddlib as dd
from ddlib import schedules
from ddlib.schedules.symbol import TIME
from ddlib.schedules.symbolic import parse
from ddlib.testing import strategies

LEAVES = [
    schedules.Linear(),
    schedules.Polynomial(0.5),
    schedules.Polynomial(3),
    schedules.Cosine(),
    schedules.Geometric(),
    schedules.Symbolic("(1 - t)**2 * exp(-t)"),
    schedules.Symbolic("1 - t**2"),
    schedules.Symbolic("1 - sqrt(t)"),
    schedules.Symbolic("1 - sin(pi*t/2)"),
    schedules.Symbolic("1 - tanh(t)/tanh(1)"),
    schedules.Symbolic("(1 - t)**1.5 * cos(t)"),
]
TIMES = [1e-8, 1e-6, 1e-4, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-6, 1 - 2.0**-24]


class Users(schedules.Schedule):
    """Only alpha: what a plug-in author writes."""

    def alpha(self, t, xp=torch):
        return (1 - t) * xp.exp(-2 * t)


@pytest.mark.parametrize("schedule", [*LEAVES, Users()], ids=repr)
def test_hazard_and_rate_are_those_of_sympy_at_fifty_digits(schedule):
    expression = schedule.expression()
    hazard = sympy.lambdify(TIME, -sympy.log(expression), "mpmath")
    rate = sympy.lambdify(TIME, -sympy.diff(expression, TIME) / expression, "mpmath")
    t = torch.tensor(TIMES, dtype=torch.float64)
    with mpmath.workdps(50):
        want_hazard = torch.tensor([float(hazard(mpmath.mpf(v))) for v in TIMES], dtype=torch.float64)
        want_rate = torch.tensor([float(rate(mpmath.mpf(v))) for v in TIMES], dtype=torch.float64)
    # a user's bare formula keeps what float64 leaves of it close to t = 1
    accuracy = 1e-12 if type(schedule) is not Users else 1e-8
    assert torch.allclose(schedule.hazard(t), want_hazard, rtol=accuracy, atol=0)
    assert torch.allclose(schedule.rate(t), want_rate, rtol=accuracy, atol=0)


@pytest.mark.parametrize("schedule", [*LEAVES, Users()], ids=repr)
def test_limits_are_one_and_zero(schedule):
    expression = schedule.expression()
    if schedule.exact_ends:
        assert sympy.simplify(sympy.limit(expression, TIME, 0, "+") - 1) == 0
        assert sympy.simplify(sympy.limit(expression, TIME, 1, "-")) == 0
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
    wanted = torch.tensor([1.0, 0.0]) if schedule.exact_ends else torch.tensor([1e-4, 20.0]).neg().exp()
    assert torch.allclose(ends, wanted.double(), atol=1e-12 if schedule.exact_ends else 1e-9)


@given(strategies.all_schedules(), st.floats(1e-6, 1 - 1e-6))
def test_rate_hazard_and_derivative_agree_with_alpha(schedule, t):
    t = torch.tensor([t], dtype=torch.float64)
    alpha = schedule.alpha(t)
    assert torch.allclose((-schedule.hazard(t)).exp(), alpha, rtol=1e-9)
    assert torch.allclose(schedule.rate(t) * alpha, -schedule.alpha_prime(t), rtol=1e-7)
    assert alpha.dtype == torch.float64 and schedule.alpha(t.float()).dtype == torch.float32


@given(strategies.all_schedules(), st.floats(1e-3, 1 - 1e-3))
def test_inverse_undoes_alpha(schedule, t):
    t = torch.tensor([t], dtype=torch.float64)
    assert torch.allclose(schedule.inverse(schedule.alpha(t)), t, rtol=1e-6)


@pytest.mark.parametrize("formula", ["1 - t**6", "(1 - t)**20", "exp(-t/(1 - t))", "1 - t**20"])
def test_clocks_that_are_flat_to_rounding_at_an_end_are_taken(formula):
    schedule = schedules.Symbolic(formula)
    assert schedule.falls(torch.linspace(0, 1, 1025, dtype=torch.float64)).all()
    assert dd.verify(schedule).ok


def test_clocks_that_stand_still_are_refused():
    class Waits(schedules.Schedule):
        def alpha(self, t, xp=torch):
            return (2 - 2 * t).clamp(max=1)

    class Early(schedules.Schedule):
        def alpha(self, t, xp=torch):
            return (1 - 2 * t).clamp(min=0)

    for schedule, where in ((Waits(), "0"), (Early(), "0.5")):
        with pytest.raises(ValueError, match=f"alpha does not decrease after t = {where},"):
            schedule.check()


@given(strategies.all_schedules(), st.floats(0, 1), st.floats(0, 1))
def test_alpha_decreases(schedule, s, t):
    early, late = sorted((s, t))
    a, b = schedule.alpha(torch.tensor([early, late], dtype=torch.float64))
    assert a >= b - 1e-15


def test_defaults_follow_from_alpha_alone():
    t = torch.tensor([0.2, 0.7], dtype=torch.float64)
    users = Users()
    assert torch.allclose(users.rate(t), 1 / (1 - t) + 2)
    assert torch.allclose(users.hazard(t), -torch.log1p(-t) + 2 * t)
    assert torch.allclose(users.inverse(users.alpha(t)), t)
    users.check()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_derivatives_work_where_gradients_are_off(mode):
    with mode():
        assert float(schedules.Cosine().alpha_prime(torch.tensor([0.0, 1.0]))[1]) == pytest.approx(-torch.pi / 2)


def test_symbolic_takes_expressions_and_strings():
    x = sympy.Symbol("t")
    given_expression, given_text = schedules.Symbolic((1 - x) ** 2), schedules.Symbolic("(1 - t)**2")
    t = torch.linspace(0, 1, 5)
    assert torch.equal(given_expression.alpha(t), given_text.alpha(t))
    assert torch.allclose(given_text.alpha(t), schedules.Polynomial(2).alpha(t))
    copy = pickle.loads(pickle.dumps(given_text))
    assert torch.equal(copy.rate(t[:-1]), given_text.rate(t[:-1]))


@pytest.mark.parametrize("text", ["-(-1)+t*-2", "2**0.5*t + pi - e/3", "sqrt(exp(-t))", "+t"])
def test_parse_builds_what_is_written(text):
    value = sympy.lambdify(TIME, parse(text), "math")(0.3)
    from math import e, exp, pi, sqrt

    assert value == pytest.approx(eval(text, {"t": 0.3, "pi": pi, "e": e, "sqrt": sqrt, "exp": exp}))


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('true')", "t.real", "(lambda: t)()", "[t][0]", "t if t else 1", "x", "open(t)", "'t'",
     "t @ t", "exp(t, t)", "exp(x=t)", "1j*t", "True", "1 -", "(" * 500 + "t" + ")" * 500, "9**9**9**9", "1e300*t"],
)  # fmt: skip
def test_parse_refuses_all_that_is_not_a_formula(text):
    with pytest.raises(ValueError, match="formula"):
        parse(text)
