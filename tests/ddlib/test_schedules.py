"""Schedules: every method follows from the one line that defines alpha."""

import pickle
import re

import mpmath
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from zoo.processes import F64

import ddlib as dd
from ddlib.processes import Masked
from ddlib.schedules import Cosine, Geometric, Linear, Polynomial, Schedule, Symbolic, Window
from ddlib.schedules.symbol import TIME
from ddlib.schedules.symbolic import _FUNCTIONS, parse
from ddlib.testing import strategies

LEAVES = [
    Linear(),
    Polynomial(0.5),
    Polynomial(3),
    Cosine(),
    Geometric(),
    Symbolic("(1 - t)**2 * exp(-t)"),
    Symbolic("1 - t**2"),
    Symbolic("1 - sqrt(t)"),
    Symbolic("1 - sin(pi*t/2)"),
    Symbolic("1 - tanh(t)/tanh(1)"),
    Symbolic("(1 - t)**1.5 * cos(t)"),
]
TIMES = [1e-8, 1e-6, 1e-4, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-6, 1 - 2.0**-24]


class Users(Schedule):
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
        want_hazard = torch.tensor(
            [float(hazard(mpmath.mpf(v))) for v in TIMES], dtype=torch.float64
        )
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
    wanted = (
        torch.tensor([1.0, 0.0]) if schedule.exact_ends else torch.tensor([1e-4, 20.0]).neg().exp()
    )
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
def test_schedules_that_are_flat_to_rounding_at_an_end_are_accepted(formula):
    schedule = Symbolic(formula)
    assert schedule.falls(torch.linspace(0, 1, 1025, dtype=torch.float64)).all()
    assert dd.verify(schedule).ok


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
        assert float(Cosine().alpha_prime(torch.tensor([0.0, 1.0]))[1]) == pytest.approx(
            -torch.pi / 2
        )


def test_symbolic_takes_expressions_and_strings():
    x = sympy.Symbol("t")
    given_expression = Symbolic((1 - x) ** 2)
    given_text = Symbolic("(1 - t)**2")
    t = torch.linspace(0, 1, 5)
    assert torch.equal(given_expression.alpha(t), given_text.alpha(t))
    assert torch.allclose(given_text.alpha(t), Polynomial(2).alpha(t))
    copy = pickle.loads(pickle.dumps(given_text))
    assert torch.equal(copy.rate(t[:-1]), given_text.rate(t[:-1]))


@pytest.mark.parametrize("text", ["-(-1)+t*-2", "2**0.5*t + pi - e/3", "sqrt(exp(-t))", "+t"])
def test_parse_builds_the_written_formula(text):
    value = sympy.lambdify(TIME, parse(text), "math")(0.3)
    from math import e, exp, pi, sqrt

    assert value == pytest.approx(
        eval(text, {"t": 0.3, "pi": pi, "e": e, "sqrt": sqrt, "exp": exp})
    )


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "t.real",
        "(lambda: t)()",
        "[t][0]",
        "t if t else 1",
        "x",
        "open(t)",
        "'t'",
        "t @ t",
        "exp(t, t)",
        "exp(x=t)",
        "1j*t",
        "True",
        "1 -",
        "(" * 500 + "t" + ")" * 500,
        "9**9**9**9",
        "1e300*t",
    ],
)
def test_parse_refuses_all_that_is_not_a_formula(text):
    with pytest.raises(ValueError, match="formula"):
        parse(text)


SCHEDULES = [
    Linear(),
    Polynomial(2.5),
    Cosine(),
    Geometric(),
    Symbolic("(1 - t)**2 * exp(-t)"),
    Symbolic("1 - t**pi"),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_inverse_has_the_precision_of_its_argument(schedule):
    t = torch.tensor([0.05, 0.3, 0.7, 0.95], dtype=F64)
    alpha = schedule.alpha(t)
    for inverse in (
        schedule.inverse,
        lambda a: Schedule.inverse(schedule, a),
    ):  # its own, and by bisection
        assert torch.allclose(inverse(alpha), t, rtol=1e-13)
        assert inverse(alpha.float()).dtype == torch.float32
        assert torch.allclose(
            inverse(alpha.float()).double(), inverse(alpha.float().double()), rtol=2e-6
        )
    by_bisection = Schedule.inverse(schedule, alpha.float())
    assert torch.equal(by_bisection, Schedule.inverse(schedule, alpha.float().double()).float())


def test_irrational_numbers_in_a_formula_keep_all_their_digits():
    t = torch.tensor([1e-30, 1e-3, 0.3, 0.9], dtype=F64)
    for formula, slope in (
        ("1 - t**pi", lambda t: mpmath.pi * t ** (mpmath.pi - 1) / (1 - t**mpmath.pi)),
        (
            "1 - t**sqrt(2)",
            lambda t: mpmath.sqrt(2) * t ** (mpmath.sqrt(2) - 1) / (1 - t ** mpmath.sqrt(2)),
        ),
        ("(e - exp(t))/(e - 1)", lambda t: mpmath.exp(t) / (mpmath.e - mpmath.exp(t))),
        (
            "1 - erf(t)/erf(1)",
            lambda t: 2 * mpmath.exp(-(t**2)) / (mpmath.erfc(t) - mpmath.erfc(1)) / mpmath.pi**0.5,
        ),
    ):
        with mpmath.workdps(40):
            exact = torch.tensor([float(slope(mpmath.mpf(float(v)))) for v in t], dtype=F64)
        assert torch.allclose(Symbolic(formula).rate(t), exact, rtol=2e-14, atol=0)


FORMULAS = [
    "1 - sin(pi*t/2)",
    "1 - t**2",
    "(1 - t)**2 * exp(-t)",
    "1 - sqrt(t)",
    "(1 - t)/(1 + 3*t)",
    "1 - t**pi",
    "cos(pi*t/2)",
    "sqrt(1 - t)",
    "1.01*(1 - t)**2/(1.01 - t)",
    "exp(-t/(1 - t))",
    "(1 - t)*exp(-t/(1 - t))",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_keeps_its_digits_up_to_the_end_of_time(formula):
    schedule = Symbolic(formula)
    t = torch.cat(
        [torch.linspace(0.1, 0.9, 9, dtype=F64), 1 - 2.0 ** -torch.arange(3, 46, 3, dtype=F64)]
    )
    value = sympy.lambdify(TIME, schedule.expression(), modules="mpmath")
    slope = sympy.lambdify(TIME, sympy.diff(schedule.expression(), TIME), modules="mpmath")
    with mpmath.workdps(60):
        times = [mpmath.mpf(float(v)) for v in t]
        alpha = torch.tensor([float(value(v)) for v in times], dtype=F64)
        rate = torch.tensor([float(-slope(v) / value(v)) for v in times], dtype=F64)
        prime = torch.tensor([float(slope(v)) for v in times], dtype=F64)
    seen = alpha > 1e-280
    assert torch.allclose(schedule.alpha(t)[seen], alpha[seen], rtol=1e-9, atol=0)
    assert torch.allclose(schedule.rate(t), rate, rtol=1e-9, atol=0)
    assert torch.allclose(schedule.alpha_prime(t)[seen], prime[seen], rtol=1e-9, atol=1e-14)
    assert schedule.alpha(sympy.Rational(1, 3), xp=sympy) == schedule.expression().subs(
        TIME, sympy.Rational(1, 3)
    )
    again = Symbolic(eval(repr(schedule).removeprefix("Symbolic(formula=").removesuffix(")")))
    assert again.expression() == schedule.expression()


def test_a_formula_that_is_right_but_for_rounding_is_accepted():
    assert float(
        Symbolic("(1 - t) * (0.1 + 0.2) / 0.3").alpha(torch.tensor(0.25, dtype=F64))
    ) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "formula", ["-u", "+u", "1 - u", "u - 1", "exp(u)", "1 - exp(-u*t)", "10000000000001*t"]
)
def test_an_error_quotes_the_formula_and_the_allowed_names(formula):
    with pytest.raises(ValueError, match=rf"^formula '{re.escape(formula)}' holds") as refusal:
        parse(formula)
    if "u" in formula:
        assert str(refusal.value).endswith("+ - * / **, t, pi, e, " + ", ".join(_FUNCTIONS))


def test_a_formula_has_a_stated_size():
    assert parse("1 - t" + " " * 995) == 1 - TIME
    assert parse("1000000000000*t") == 10**12 * TIME and parse("t**1000") == TIME**1000


@pytest.mark.usefixtures("as_users_call")
def test_the_ends_of_the_ranges_are_taken():
    assert float(Geometric().hazard(torch.tensor(0.0, dtype=F64))) == pytest.approx(1e-4)
    assert float(Geometric().hazard(torch.tensor(1.0, dtype=F64))) == pytest.approx(20)
    Geometric(1e-12, 500)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_default_hazard_and_rate_agree_with_closed_forms(schedule):
    """Integrated from 0, or from what an inexact beginning has already lost."""
    t = torch.tensor([1e-9, 1e-4, 0.01, 0.5, 0.9], dtype=F64)
    if schedule.exact_ends:
        assert torch.allclose(Schedule.hazard(schedule, t), schedule.hazard(t), rtol=1e-9, atol=0)
    lossy = Geometric(1e-3, 0.5)
    assert torch.allclose(Schedule.hazard(lossy, t), lossy.hazard(t), rtol=1e-9, atol=0)


def user(alpha):
    """A process on a user's own schedule."""
    return Masked(3, type("Mine", (Schedule,), {"alpha": lambda self, t, xp=torch: alpha(t)})())


def test_the_flux_is_finite_where_alpha_vanishes_by_rounding():
    class Sine(Schedule):
        def alpha(self, t, xp=torch):
            return 1 - xp.sin(
                xp.pi * t / 2
            )  # 0 in float64 just before t = 1, where its rate is then infinite

    process = Masked(5, Sine())
    x = torch.zeros(1, 2).long()
    z = torch.full((1, 2), 5)
    t = torch.ones(1).double()
    assert bool(process.weights(t).isfinite().all())
    assert bool(dd.nelbo(process, torch.zeros(1, 2, 5), x, z, t).isfinite().all())


def vanishing(t):
    return torch.exp(-t / (1 - t).clamp_min(1e-300))


@pytest.mark.usefixtures("as_users_call")
def test_a_schedule_that_vanishes_is_taken_if_it_defines_its_rate():
    class Resolved(Schedule):  # falls below float64 before t reaches 1
        def alpha(self, t, xp=torch):
            return vanishing(t)

        def rate(self, t):
            return 1 / (1 - t) ** 2

        def hazard(self, t):
            return t / (1 - t)

    Masked(3, Resolved())


class Drop(Schedule):
    """A linear schedule that loses half of the tokens at once, or within a width."""

    def __init__(self, width=0.0, kinks=(0.0, 1.0)):
        self.width = width
        self.declare(kinks=kinks)
        self._kinks = kinks

    @property
    def kinks(self):
        return self._kinks

    def alpha(self, t, xp=torch):
        past = (t >= 0.3).to(t) if self.width == 0 else ((t - 0.3) / self.width).clamp(0, 1)
        return (1 - t) * (1 - 0.5 * past)


@pytest.mark.parametrize("width", [1e-3, 0.01, 0.2])
def test_a_schedule_in_pieces_is_taken_with_its_kinks(width):
    Masked(3, Drop(width, (0.0, 0.3, 0.3 + width, 1.0)))


@pytest.mark.parametrize("power", [1e-3, 0.1, 0.5, 1.5, 1000.0])
@pytest.mark.parametrize("start, end", [(0.0, 1.0), (0.3, 0.62), (0.5, 1.0), (0.0, 0.2)])
def test_a_schedule_falls_by_the_integral_of_its_rate(power, start, end):
    _, difference = Window(Polynomial(power), start, end).unaccounted()
    assert float(difference.abs().max()) < 2e-7


@pytest.mark.parametrize("kinks", [(0.0, 1.0), (0.0, 0.3, 1.0)])
def test_a_jump_is_refused_whether_it_is_a_kink_or_not(kinks):
    _, difference = Drop(0.0, kinks).unaccounted()
    assert float(difference.abs().max()) == pytest.approx(0.35, abs=1e-3)


class HalfRate(Linear):
    def rate(self, t):
        return 0.5 / (1 - t)


class OtherHazard(Polynomial):
    def hazard(self, t):
        return -torch.log1p(-t)


class OtherInverse(Polynomial):
    def inverse(self, alpha):
        return 1 - alpha


test_schedules_that_contradict_themselves_are_refused = refuses(r"""
    Masked(3, Drop()) | ValueError | from t = 0\.29.* on alpha falls by 0\.35 more than the integral
    Masked(3, Drop(1e-5)) | ValueError | must be continuous, rate must be -alpha'/alpha, and kinks
    Masked(3, Drop(0.01)) | ValueError | and kinks must hold the times at which alpha has a kink
    Masked(3, Drop(0.2)) | ValueError | and kinks must hold the times at which alpha has a kink
    Masked(3, Drop(0.2, (1.5, -1))) | ValueError | kinks holds \[1\.5, -1\], must be times in
    user(lambda t: (1 - t / 2) * (t < 1)) | ValueError | alpha falls by 0\.5 more than
    Masked(3, HalfRate()) | ValueError | HalfRate: from t = 0 on alpha falls by 0\.00391 more
    Masked(3, OtherHazard(2.0)) | ValueError | OtherHazard: hazard contradicts alpha at t
    Masked(3, OtherInverse(2.0)) | ValueError | OtherInverse: inverse contradicts alpha at t
""")


test_bad_schedules_are_refused = refuses(r"""
    user(vanishing) | ValueError
        | rate\(0\.999.*\) is not a number, since alpha\(0\.999.*\) is 0: override rate and hazard
    user(lambda t: (1 - t) * (1 + 1e-6) - 1e-6) | ValueError | alpha\(1\) is -.*must lie in \[0, 1\]
    user(lambda t: (1 - t) * (1 + 1e-6)) | ValueError | alpha\(0\) is 1\.0.*must lie in \[0, 1\]
    user(lambda t: (1 - t) * (1 + 2 * t)) | ValueError | alpha\(.*must lie in \[0, 1\]
    user(lambda t: vanishing(torch.where((t > 0.5) & (t < 0.6), 0.5, t)))
        | ValueError | does not decrease after t = 0\.5,
    user(lambda t: (2 - 2 * t).clamp(max=1)) | ValueError | alpha does not decrease after t = 0,
    user(lambda t: (1 - 2 * t).clamp(min=0)) | ValueError | alpha does not decrease after t = 0.5,
    Geometric(1e-13, 1) | ValueError | ^sigma_min is .*in \[1e-12, 500\]
    Geometric(0.1, 500.5) | ValueError | ^sigma_max is .*in \[1e-12, 500\]
    Geometric(500.5, 1) | ValueError | ^sigma_min is .*in \[1e-12, 500\]
    Geometric(1.0, 1.0) | ValueError | ^sigma_min is 1.*must be below sigma_max = 1
    Polynomial(0.9e-3) | ValueError | ^power is .*in \[0\.001, 1000\]
    Polynomial(1000.5) | ValueError | ^power is .*in \[0\.001, 1000\]
    parse("1 - t" + " " * 996) | ValueError | at most
    parse("1000000000000.5*t") | ValueError | at most
    parse("t**1001") | ValueError | at most
    parse("t**1000.5") | ValueError | at most
""")


def test_a_window_has_the_kinks_of_its_schedule():
    inner = Window(Linear(), 0.2, 0.8)
    kinks = Window(inner, 0.5, 1.0).kinks
    assert kinks == pytest.approx((0.6, 0.9))

    class Bent(Linear):
        kinks = (0.0, 0.3, 1.0)

    assert Window(Bent(), 0.0, 0.9).kinks == pytest.approx((0.0, 0.27, 0.9))
