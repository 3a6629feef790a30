"""Schedules of rates that vary fast or are singular at an end, against integrals in closed form."""

from itertools import pairwise

import mpmath
import pytest
import sympy
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.processes import F64

import ddlib as dd
from ddlib.processes import Hierarchical
from ddlib.schedules import Rate
from ddlib.schedules.symbol import TIME
from ddlib.schedules.symbolic import parse


def at(*times):
    return torch.tensor(times, dtype=F64)


SIZES = st.sampled_from(["1/10", "1", "20"])
"""Numbers are fractions: sympy would round functions of decimal ones to 15 digits."""


@st.composite
def ends(draw):
    """A rate that is singular at t = 1: a power of 1 - t of at most -1."""
    size = draw(SIZES)
    power = draw(st.sampled_from([1, 2, 3]))
    integral = "-log(1 - t)" if power == 1 else f"((1 - t)**{1 - power} - 1)/{power - 1}"
    return f"{size}/(1 - t)**{power}", f"{size}*({integral})", 0


@st.composite
def peaks(draw):
    size = draw(SIZES)
    inverse = int(10 ** draw(st.floats(1, 4.5)))
    centre = f"{draw(st.integers(1, 999))}/1000"
    place = f"({inverse}*(t - {centre}))"
    first = f"({inverse}*(0 - {centre}))"
    if draw(st.booleans()):
        rate = f"exp(-{place}**2)"
        integral = f"sqrt(pi)/2*(erf({place}) - erf({first}))"
    else:
        rate = f"1/(1 + {place}**2)"
        integral = f"(atan({place}) - atan({first}))"
    return f"{size}*{inverse}*{rate}", f"{size}*{integral}", 20 * inverse


@st.composite
def waves(draw):
    size = draw(SIZES)
    speed = draw(st.integers(1, 1000))
    return f"{size}*(1 + sin({speed}*t))", f"{size}*(t + (1 - cos({speed}*t))/{speed})", 20


@st.composite
def starts(draw):
    """A rate that is singular at t = 0: a power of t, or a logarithm."""
    size = draw(SIZES)
    quarters = draw(st.integers(0, 3))
    if quarters == 0:
        return f"-{size}*log(t)", f"{size}*(t - t*log(t))", 0
    return f"{size}/t**({quarters}/4)", f"{size}*4/{4 - quarters}*t**({4 - quarters}/4)", 0


def exact(formula, times):
    function = sympy.lambdify(TIME, parse(formula), "mpmath")
    with mpmath.workdps(60):
        return torch.tensor([float(function(mpmath.mpf(t))) for t in times], dtype=F64)


def assert_resolved(parts, drawn=()):
    """Compare with the sum of parts, each a rate, its integral and the height of its peak."""
    schedule = Rate(" + ".join(rate for rate, _, _ in parts))
    times = [1e-14, 1e-6, 0.01, 0.25, 0.3, 0.3005, 0.5, 0.9, 1 - 1e-6, 1 - 2.0**-24, *drawn]
    hazard = sum(exact(integral, times) for _, integral, _ in parts)
    rate = sum(exact(formula, times) for formula, _, _ in parts)
    height = max(height for _, _, height in parts)
    torch.testing.assert_close(schedule.hazard(at(*times)), hazard, rtol=2e-12, atol=0)
    assert bool(((schedule.rate(at(*times)) - rate).abs() <= 1e-12 * (rate + 0.1 * height)).all())


@pytest.mark.parametrize(
    "part",
    [
        ("500*exp(-(1000*(t - 3/10))**2)", "sqrt(pi)/4*(erf(1000*(t - 3/10)) - erf(-300))", 500),
        ("100/(1 + (100*(t - 3/10))**2)", "atan(100*(t - 3/10)) - atan(-30)", 100),
        ("1 + sin(300*t)", "t + (1 - cos(300*t))/300", 0),
        ("1/sqrt(t)", "2*sqrt(t)", 0),
    ],
    ids=str,
)
def test_a_rate_that_varies_fast_has_the_integral_of_its_formula(part):
    """Panels of fixed width replaced peaks, waves and singularities by other functions, without an
    error.
    """
    assert_resolved([("1/(1 - t)", "-log(1 - t)", 0), part])


@settings(max_examples=examples(60), deadline=None)
@given(
    ends(),
    st.lists(st.one_of(peaks(), waves(), starts()), max_size=3),
    st.lists(st.floats(1e-12, 1 - 1e-12)),
)
def test_a_sum_of_ends_peaks_and_waves_has_the_integral_of_its_formula(end, others, drawn):
    assert_resolved([end, *others], drawn)


def test_halved_panels_cover_the_times_once():
    schedule = Rate("1/(1 - t) + 500*exp(-((t - 0.3)/0.001)**2)")
    edges = schedule._grid.tolist()
    assert (
        edges[0] == 0
        and edges[-1] == 1 - 2**-53
        and all(low < high for low, high in pairwise(edges))
    )
    assert len(edges) - 1 == len(schedule._rates) == len(schedule._hazards)


@pytest.mark.parametrize("size", [0.01, 0.8])
def test_a_rate_with_an_infinite_integral_is_a_schedule_however_slowly_it_grows(size):
    schedule = Rate(f"{size}/(1 - t)")
    t = torch.tensor([0.1, 0.9, 1 - 2.0**-24], dtype=F64)
    torch.testing.assert_close(schedule.alpha(t), (1 - t) ** size, rtol=1e-12, atol=0)
    report = dd.verify(schedule)
    assert report.ok, report


def test_occupancies_that_change_fast_are_those_of_the_formulas():
    formulas = ["1 - t**100", "t**100*(1 - t)"]
    process = Hierarchical.from_occupancies(dd.hierarchies.Tree([[0, 0, 1, 1]]), formulas)
    times = [0.5, 0.9, 0.97, 0.99, 0.999]
    found = process.occupancies(at(*times))
    for level, formula in enumerate(formulas):
        torch.testing.assert_close(found[:, level], exact(formula, times), rtol=1e-10, atol=1e-12)


def test_a_rate_that_4096_panels_do_not_resolve_is_refused_with_the_time():
    with pytest.raises(
        ValueError, match=r"sin\(100000\*t\).* is not resolved by 4096 panels: near t = 0\.06"
    ):
        Rate("(1 + sin(100000*t))/(1-t)")


test_refusals = refuses(r"""
    Rate("1/(1-t)**0.97") | ValueError | integral 22.3 over time, must be infinite
    Rate("1/(1-t)**0.5") | ValueError | integral 2 over time, must be infinite
    Rate("1/sqrt(sqrt((t-0.3)**2)) + 1/(1-t)") | ValueError | is nan at t = 0.3
    Rate("1/(t-0.3)**2 + 1/(1-t)") | ValueError
        | is nan at t = 0.3, must be a rate of at least 0, and finite
    Rate("1/t + 1/(1-t)") | ValueError | at t = .*, must be a rate of at least 0, and finite
    Rate("1/(1-t) - 1.7*exp(-((t-0.3)/0.0001)**2)") | ValueError
        | at t = 0.29.*must be a rate of at least 0
""")
