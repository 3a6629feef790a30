"""Claims about schedules."""

from collections.abc import Callable, Iterator
from typing import Any

import mpmath
import sympy
import torch
from torch import Tensor

from ddlib.schedules import Schedule
from ddlib.schedules.symbol import TIME
from ddlib.schedules.symbolic import digits
from ddlib.verification.claims.arguments import PART_CLAIMS
from ddlib.verification.framework.claim import Claim, Comparison, Point, of_dtype
from ddlib.verification.framework.dependencies import verifier

_ENDS = torch.tensor([0.0, 1.0], dtype=torch.float64)
_TIMES = torch.tensor(
    [1e-8, 1e-6, 1e-4, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1 - 1e-6, 1 - 2.0**-24],
    dtype=torch.float64,
)
_ROUNDING = 2.0**-52


def formula(schedule: Schedule) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return alpha and its derivative as functions of an mpmath number: by sympy, else by
    high-precision differences.

    A formula that sympy does not support is evaluated with mpmath, whose functions have the same
    names as torch's.
    """
    try:
        expression = schedule.expression()
        alpha = sympy.lambdify(TIME, expression, "mpmath")
        slope = sympy.lambdify(TIME, sympy.diff(expression, TIME), "mpmath")
    except Exception:  # sympy or the formula may raise anything
        return lambda t: schedule.alpha(t, xp=mpmath), lambda t: mpmath.diff(
            lambda u: schedule.alpha(u, xp=mpmath), t
        )
    return alpha, slope


def _evaluate(schedule: Schedule, quantity: Callable[[Any, Any], Any]) -> Tensor:
    """Evaluate ``quantity(alpha, alpha')`` at all times.

    400 digits suffice for -log(1 - t^20) at 1e-8.
    """
    alpha, slope = formula(schedule)
    with digits(400):
        times = [mpmath.mpf(float(t)) for t in _TIMES]
        return torch.tensor(
            [_to_float(quantity(alpha(t), slope(t))) for t in times], dtype=torch.float64
        )


def _to_float(number: Any) -> float:
    """Convert to float; NaN for a complex number, the logarithm of a negative alpha, which the
    claim "ends" reports.
    """
    return float("nan") if isinstance(number, mpmath.mpc) else float(number)


def _compare(
    quantity: str, got: Tensor, expected: Tensor, alpha: Tensor, rounding: float = 0.0
) -> Comparison:
    """Compare with relative tolerance 1e-10, plus the error of float64 if a formula for alpha
    cancels near t = 1.
    """
    # below, -log alpha is infinite in float64 and no tokens are left
    relevant = (alpha > 1e-290) & ~expected.isnan()
    alpha = alpha[relevant]
    expected = expected[relevant]
    allowed = expected.abs() * (1e-10 + 16 * _ROUNDING / alpha) + rounding
    return Comparison(quantity, (), got[relevant], expected, allowed, {"t": _TIMES[relevant]})


def _ends(schedule: Schedule, point: Point) -> Iterator[Comparison]:
    grid = torch.linspace(0, 1, 257, dtype=torch.float64)
    inside = schedule.alpha(grid)
    message = "alpha({t:.6g}) = {got:.6g}: must lie in [0, 1]"
    yield Comparison("alpha(t)", (), inside, inside.clamp(0, 1), 1e-12, {"t": grid}, message)
    alpha = schedule.alpha(_ENDS)
    if schedule.exact_ends:
        yield Comparison("alpha(t)", (), alpha, 1 - _ENDS, 1e-9, {"t": _ENDS})
    else:
        yield Comparison("alpha(t)", (), alpha, alpha.clamp(0, 1), 0.0, {"t": _ENDS}, message)


def _limits(schedule: Schedule, point: Point) -> Iterator[Comparison]:
    if not schedule.exact_ends:
        return
    limits = [
        sympy.limit(schedule.expression(), TIME, end, side) for end, side in ((0, "+"), (1, "-"))
    ]
    got = torch.tensor([float(limit) for limit in limits], dtype=torch.float64)
    yield Comparison("limit of alpha", (), got, 1 - _ENDS, 1e-12, {"t": _ENDS})


def _decreasing(schedule: Schedule, point: Point) -> Iterator[Comparison]:
    grid = torch.linspace(0, 1, 1025, dtype=torch.float64)
    falls = schedule.falls(grid).double()
    message = "alpha(t) does not fall after t = {t:.6g}: must decrease strictly"
    yield Comparison(
        "alpha(t + 1/1024) < alpha(t)",
        (),
        falls,
        torch.ones_like(falls),
        0.0,
        {"t": grid[:-1]},
        message,
    )


def _derivative(schedule: Schedule, point: Point) -> Iterator[Comparison]:
    alpha = _evaluate(schedule, lambda a, da: a)
    slope = _evaluate(schedule, lambda a, da: da)
    yield _compare("alpha(t)", schedule.alpha(_TIMES), alpha, alpha, 16 * _ROUNDING)
    yield _compare("alpha'(t)", schedule.alpha_prime(_TIMES), slope, alpha)


def _rate(schedule: Schedule, point: Point) -> Iterator[Comparison]:
    alpha = _evaluate(schedule, lambda a, da: a)
    rate = _evaluate(schedule, lambda a, da: -da / a if a else mpmath.inf)
    hazard = _evaluate(schedule, lambda a, da: -mpmath.log(a))
    yield _compare("rate(t)", schedule.rate(_TIMES), rate, alpha)
    yield _compare("hazard(t)", schedule.hazard(_TIMES), hazard, alpha)


def _integral(schedule: Schedule, point: Point) -> Iterator[Comparison]:
    times, difference = schedule.unaccounted()
    message = "from t = {t:.6g} on alpha falls by {got:.6g} more than the integral of rate * alpha"
    expected = torch.zeros_like(difference)
    yield Comparison("fall of alpha", (), difference, expected, 1e-6, {"t": times}, message)


def _inverse(schedule: Schedule, point: Point) -> Iterator[Comparison]:
    low, high = schedule.support
    inner = low + (high - low) * _TIMES[(_TIMES > 1e-5) & (_TIMES < 1 - 1e-5)]
    alpha = schedule.alpha(inner)
    # alpha has a rounding error, so its time has that error divided by the slope
    allowed = 1e-9 + 16 * _ROUNDING / schedule.alpha_prime(inner).abs()
    yield Comparison("inverse(alpha(t))", (), schedule.inverse(alpha), inner, allowed, {"t": inner})
    time = schedule.time_of(schedule.hazard(inner))
    yield Comparison("time_of(hazard(t))", (), time, inner, allowed, {"t": inner})


def _elementwise(schedule: Schedule, point: Point) -> Iterator[Comparison]:
    methods = {"alpha": schedule.alpha, "rate": schedule.rate, "hazard": schedule.hazard}
    for name, method in methods.items():
        single = _TIMES[3:-2].float()
        double = _TIMES[3:-2].float().double()
        got = method(single)
        expected = method(double)
        yield of_dtype(f"{name} of a float32 time", got, torch.float32)
        allowed = 1e-4 * expected.abs() + 1e-6
        yield Comparison(f"{name}(t) in float32", (), got, expected, allowed, {"t": double})
        block = method(double.view(1, -1, 1).expand(2, -1, 1))
        yield Comparison(
            f"{name}(t), elementwise",
            ("row",),
            block[..., 0],
            expected.expand(2, -1),
            1e-12 * expected.abs(),
        )


CLAIMS = (
    Claim(
        "schedule",
        "ends",
        "alpha is 1 at t = 0, 0 at t = 1 (if exact_ends), in between within [0, 1]",
        "1e-9",
        _ends,
    ),
    Claim(
        "schedule",
        "limits",
        "sympy's limits of alpha at both ends are 1 and 0",
        "1e-12",
        _limits,
        points=(),
        more=({},),
        rests_on=("ends",),
    ),
    Claim(
        "schedule",
        "decreasing",
        "alpha decreases strictly",
        "exactly",
        _decreasing,
        rests_on=("ends",),
    ),
    Claim(
        "schedule",
        "derivative",
        "alpha' is the derivative of alpha, by sympy in high precision",
        "relative 1e-10 (+ 4e-15/alpha)",
        _derivative,
        rests_on=("ends",),
    ),
    Claim(
        "schedule",
        "rate",
        "rate = -alpha'/alpha and hazard = -log alpha, in high precision",
        "relative 1e-10 (+ 4e-15/alpha)",
        _rate,
        rests_on=("derivative",),
    ),
    Claim(
        "schedule",
        "integral",
        "alpha falls by the integral of rate * alpha between kinks",
        "1e-6",
        _integral,
        rests_on=("ends",),
    ),
    Claim(
        "schedule",
        "inverse",
        "inverse is the inverse of alpha, and time_of of the hazard",
        "1e-9 (+ 4e-15/slope)",
        _inverse,
        rests_on=("decreasing", "derivative"),
    ),
    Claim(
        "schedule",
        "elementwise",
        "the dtype is kept, any shape is allowed",
        "relative 1e-4 in float32",
        _elementwise,
        rests_on=("ends",),
    ),
)

verify = verifier(*CLAIMS, *PART_CLAIMS)
