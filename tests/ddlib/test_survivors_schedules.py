"""What mutation testing found untested in schedules; see tests/mutation/survivors.md."""

import re

import mpmath
import pytest
import sympy
import torch
from zoo import F64

from ddlib.processes import Masked
from ddlib.schedules import Cosine, Geometric, Linear, Polynomial, Schedule, Symbolic
from ddlib.schedules.symbol import TIME
from ddlib.schedules.symbolic import _FUNCTIONS, parse

CLOCKS = [Linear(), Polynomial(2.5), Cosine(), Geometric(), Symbolic("(1 - t)**2 * exp(-t)"), Symbolic("1 - t**pi")]


@pytest.mark.parametrize("clock", CLOCKS, ids=str)
def test_a_clock_is_read_backwards_in_the_precision_of_its_question(clock):
    t = torch.tensor([0.05, 0.3, 0.7, 0.95], dtype=F64)
    alpha = clock.alpha(t)
    for inverse in (clock.inverse, lambda a: Schedule.inverse(clock, a)):  # its own, and by bisection
        assert torch.allclose(inverse(alpha), t, rtol=1e-13)
        assert inverse(alpha.float()).dtype == torch.float32
        assert torch.allclose(inverse(alpha.float()).double(), inverse(alpha.float().double()), rtol=2e-6)
    by_bisection = Schedule.inverse(clock, alpha.float())
    assert torch.equal(by_bisection, Schedule.inverse(clock, alpha.float().double()).float())


def test_irrational_numbers_in_a_formula_keep_all_their_digits():
    t = torch.tensor([1e-30, 1e-3, 0.3, 0.9], dtype=F64)
    for formula, slope in (
        ("1 - t**pi", lambda t: mpmath.pi * t ** (mpmath.pi - 1) / (1 - t**mpmath.pi)),
        ("1 - t**sqrt(2)", lambda t: mpmath.sqrt(2) * t ** (mpmath.sqrt(2) - 1) / (1 - t ** mpmath.sqrt(2))),
        ("(e - exp(t))/(e - 1)", lambda t: mpmath.exp(t) / (mpmath.e - mpmath.exp(t))),
        ("1 - erf(t)/erf(1)", lambda t: 2 * mpmath.exp(-(t**2)) / (mpmath.erfc(t) - mpmath.erfc(1)) / mpmath.pi**0.5),
    ):
        with mpmath.workdps(40):
            exact = torch.tensor([float(slope(mpmath.mpf(float(v)))) for v in t], dtype=F64)
        assert torch.allclose(Symbolic(formula).rate(t), exact, rtol=2e-14, atol=0)


FORMULAS = ["1 - sin(pi*t/2)", "1 - t**2", "(1 - t)**2 * exp(-t)", "1 - sqrt(t)", "(1 - t)/(1 + 3*t)", "1 - t**pi",
            "cos(pi*t/2)", "sqrt(1 - t)", "1.01*(1 - t)**2/(1.01 - t)", "exp(-t/(1 - t))",
            "(1 - t)*exp(-t/(1 - t))"]  # fmt: skip


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_keeps_its_digits_up_to_the_end_of_time(formula):
    clock = Symbolic(formula)
    t = torch.cat([torch.linspace(0.1, 0.9, 9, dtype=F64), 1 - 2.0 ** -torch.arange(3, 46, 3, dtype=F64)])
    value = sympy.lambdify(TIME, clock.expression(), modules="mpmath")
    slope = sympy.lambdify(TIME, sympy.diff(clock.expression(), TIME), modules="mpmath")
    with mpmath.workdps(60):
        times = [mpmath.mpf(float(v)) for v in t]
        alpha = torch.tensor([float(value(v)) for v in times], dtype=F64)
        rate = torch.tensor([float(-slope(v) / value(v)) for v in times], dtype=F64)
        prime = torch.tensor([float(slope(v)) for v in times], dtype=F64)
    seen = alpha > 1e-280
    assert torch.allclose(clock.alpha(t)[seen], alpha[seen], rtol=1e-9, atol=0)
    assert torch.allclose(clock.rate(t), rate, rtol=1e-9, atol=0)
    assert torch.allclose(clock.alpha_prime(t)[seen], prime[seen], rtol=1e-9, atol=1e-14)
    assert clock.alpha(sympy.Rational(1, 3), xp=sympy) == clock.expression().subs(TIME, sympy.Rational(1, 3))
    again = Symbolic(eval(repr(clock).removeprefix("Symbolic(formula=").removesuffix(")")))
    assert again.expression() == clock.expression()


def test_a_formula_that_is_right_but_for_rounding_is_accepted():
    assert float(Symbolic("(1 - t) * (0.1 + 0.2) / 0.3").alpha(torch.tensor(0.25, dtype=F64))) == pytest.approx(0.75)


@pytest.mark.parametrize("formula", ["-u", "+u", "1 - u", "u - 1", "exp(u)", "1 - exp(-u*t)", "10000000000001*t"])
def test_a_refusal_quotes_the_whole_formula_and_what_may_be_in_it(formula):
    with pytest.raises(ValueError, match=rf"^formula '{re.escape(formula)}' holds") as refusal:
        parse(formula)
    if "u" in formula:
        assert str(refusal.value).endswith("+ - * / **, t, pi, e, " + ", ".join(_FUNCTIONS))


def test_a_formula_has_a_stated_size():
    assert parse("1 - t" + " " * 995) == 1 - TIME
    assert parse("1000000000000*t") == 10**12 * TIME and parse("t**1000") == TIME**1000
    for text in ("1 - t" + " " * 996, "1000000000000.5*t", "t**1001", "t**1000.5"):
        with pytest.raises(ValueError, match="at most"):
            parse(text)


@pytest.mark.usefixtures("as_users_call")
def test_clocks_hold_to_their_stated_ranges():
    assert float(Geometric().hazard(torch.tensor(0.0, dtype=F64))) == pytest.approx(1e-4)
    assert float(Geometric().hazard(torch.tensor(1.0, dtype=F64))) == pytest.approx(20)
    Geometric(1e-12, 500)
    for name, arguments in (("sigma_min", (1e-13, 1)), ("sigma_max", (0.1, 500.5)), ("sigma_min", (500.5, 1))):
        with pytest.raises(ValueError, match=rf"^{name} is .*in \[1e-12, 500\]"):
            Geometric(*arguments)
    with pytest.raises(ValueError, match=r"^sigma_min is 1.*must be below sigma_max = 1"):
        Geometric(1.0, 1.0)
    for power in (0.9e-3, 1000.5):
        with pytest.raises(ValueError, match=r"^power is .*in \[0\.001, 1000\]"):
            Polynomial(power)


@pytest.mark.parametrize("clock", CLOCKS, ids=str)
def test_hazard_and_rate_by_the_contract_are_the_clocks_own(clock):
    """Integrated from 0, or from what an inexact beginning has already lost."""
    t = torch.tensor([1e-9, 1e-4, 0.01, 0.5, 0.9], dtype=F64)
    if clock.exact_ends:
        assert torch.allclose(Schedule.hazard(clock, t), clock.hazard(t), rtol=1e-9, atol=0)
    lossy = Geometric(1e-3, 0.5)
    assert torch.allclose(Schedule.hazard(lossy, t), lossy.hazard(t), rtol=1e-9, atol=0)


@pytest.mark.usefixtures("as_users_call")
def test_a_users_clock_is_refused_for_what_is_wrong_with_it():
    def make(formula):
        return Masked(3, type("Mine", (Schedule,), {"alpha": lambda self, t, xp=torch: formula(t)})())

    def vanishing(t):
        return torch.exp(-t / (1 - t).clamp_min(1e-300))

    class Resolved(Schedule):  # falls below float64 before t reaches 1, and knows its rate there
        def alpha(self, t, xp=torch):
            return vanishing(t)

        def rate(self, t):
            return 1 / (1 - t) ** 2

        def hazard(self, t):
            return t / (1 - t)

    Masked(3, Resolved())
    for formula, reason in (
        (vanishing, r"rate\(0\.999.*\) is not a number, since alpha\(0\.999.*\) is 0: override rate and hazard"),
        (lambda t: (1 - t) * (1 + 1e-6) - 1e-6, r"alpha\(1\) is -.*must lie in \[0, 1\]"),
        (lambda t: (1 - t) * (1 + 1e-6), r"alpha\(0\) is 1\.0.*must lie in \[0, 1\]"),
        (lambda t: (1 - t) * (1 + 2 * t), r"alpha\(.*must lie in \[0, 1\]"),
        (lambda t: vanishing(torch.where((t > 0.5) & (t < 0.6), 0.5, t)), r"does not decrease after t = 0\.5,"),
    ):
        with pytest.raises(ValueError, match=reason):
            make(formula)
