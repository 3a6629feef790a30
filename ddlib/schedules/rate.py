"""Schedule given by its rate."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Self

import mpmath
import numpy as np
import sympy
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from ddlib.schedules.base import Schedule
from ddlib.schedules.symbol import TIME
from ddlib.schedules.symbolic import Compiled, as_expression, digits, exact_text
from ddlib.utils.bisection import bisect
from ddlib.utils.validation import require

_DEGREE = 16
"""Degree of the polynomial of a panel."""
_HALVINGS = 64
"""Panels towards t = 0."""
_DIGITS = 50
"""Decimal digits in which the formula is evaluated."""

_PANELS = 4096
"""Largest number of panels."""
_ERROR = 2e-13
"""Largest relative error of a polynomial."""
_TINY = 1e-280
"""Rates below this need no accuracy."""

_TESTED = 8
"""Number of times at which a polynomial is compared with its formula."""
_SPACING = 2.0**-17
"""Distance of the times that these are among."""


class Rate(Schedule):
    r"""Schedule with a rate given as a formula in t: :math:`\alpha(t) = \exp(-\int_0^t
    \lambda(u)\,du)`.

    ``Hierarchical.from_occupancies`` makes the schedules of its edges in this way. The formula is
    evaluated in 50 decimal digits when the object is made, at Chebyshev points of panels that halve
    towards both ends, and integrated as polynomials of degree 16. A panel is halved until its
    polynomial agrees with the formula. So formulas that cancel near an end lose no digits, also for
    a rate such as ``1/(1 - t)`` that has no finite value at t = 1: the hazard is accurate to about
    1e-13 from t = 1e-16 on, and so is the rate where it is not small beside a peak next to it.
    Peaks that are wider than 1e-5 are found.

    Args:
        formula: the rate, in jumps per unit of time, e.g. ``"1/(1 - t)"``, or a sympy expression in
            the symbol t. It is positive inside (0, 1), smooth, and its integral is finite up to any
            t < 1 and infinite up to t = 1.

    Raises:
        TypeError: neither a string nor a sympy expression.
        ValueError: not a formula in t; a rate that is negative or not a number; a finite integral;
            a formula that 4,096 panels do not resolve, with the time.

    Example:
        >>> Rate("2/(1 - t)").alpha(torch.tensor([0.0, 0.5, 1.0]))
        tensor([1.0000, 0.2500, 0.0000])
    """

    def __init__(self, formula: str | sympy.Expr) -> None:
        self._expression = as_expression(formula)
        self.formula = str(self._expression)
        self.declare(formula=formula)
        self._grid, self._rates, self._hazards = _panels(self._expression, self.formula)
        self.check()

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls("1/(1 - t)"), cls("2*t/(1 - t**2) + 1/2")]

    def arguments(self) -> dict[str, Any]:
        """Return the formula as a string.

        A sympy expression is printed with all digits of its numbers.
        """
        return {"formula": exact_text(super().arguments()["formula"], self._expression)}

    def expression(self) -> sympy.Expr:
        """``alpha`` as a sympy expression, with the integral of the rate in closed form where sympy
        finds it.
        """
        time = sympy.Symbol("u", positive=True)
        return sympy.exp(-sympy.integrate(self._expression.subs(TIME, time), (time, 0, TIME)))

    def alpha(self, t: Any, xp: Any = torch) -> Any:
        if xp is torch:
            return torch.exp(-self.hazard(t))
        if xp is mpmath:
            return mpmath.exp(
                -mpmath.quad(sympy.lambdify(TIME, self._expression, "mpmath"), [0, t / 2, t])
            )
        return self.expression().subs(TIME, t)

    def alpha_prime(self, t: Tensor) -> Tensor:
        return torch.where(t < 1, -self.rate(t) * self.alpha(t), 0.0)

    def rate(self, t: Tensor) -> Tensor:
        return torch.where(t < 1, self._at(self._rates, t), torch.inf)

    def hazard(self, t: Tensor) -> Tensor:
        return torch.where(t < 1, torch.where(t > 0, self._at(self._hazards, t), 0.0), torch.inf)

    def inverse(self, alpha: Tensor) -> Tensor:
        return self.time_of(-alpha.log())

    def time_of(self, hazard: Tensor) -> Tensor:
        return bisect(lambda t: self.hazard(t) < hazard, hazard)

    def _at(self, table: Tensor, t: Tensor) -> Tensor:
        """Evaluate the polynomial of the panel of each time."""
        time = t.to(torch.float64)
        grid = self._grid.to(t.device)
        panel = (torch.searchsorted(grid, time.contiguous(), right=True) - 1).clamp(
            0, len(grid) - 2
        )
        low = grid[panel]
        high = grid[panel + 1]
        place = 2 * (time - low) / (high - low) - 1
        coefficients = table.to(t.device)[panel]
        value = coefficients[..., -1]
        before = torch.zeros_like(time)
        for k in range(coefficients.shape[-1] - 2, 0, -1):  # Clenshaw's recurrence
            value, before = coefficients[..., k] + 2 * place * value - before, value
        return (coefficients[..., 0] + place * value - before).to(t.dtype)


def _panels(rate: sympy.Expr, formula: str) -> tuple[Tensor, Tensor, Tensor]:
    """Edges of the panels, and the Chebyshev series of rate and hazard in each."""
    grid = [0.0]
    rates = []
    hazards = []
    total = 0.0
    with digits(_DIGITS):
        for low, high, series in _panels_of(rate, formula):
            integral = torch.tensor(
                chebyshev.chebint(series.numpy(), lbnd=-1, scl=(high - low) / 2)
            )
            # the integral begins at 0 in each panel, the hazard at the total of those before
            integral[0] += total
            total = float(chebyshev.chebval(1.0, integral.numpy()))
            grid.append(high)
            rates.append(series)
            hazards.append(integral)
    require(
        # a slowly divergent integral, such as log log 1/(1 - t), is still small at the last float64
        total > 30 or _diverges(rate),
        f"formula {formula} has the integral {total:.3g} over time, must be infinite: alpha(1) is "
        "not 0",
    )
    return torch.tensor(grid, dtype=torch.float64), torch.stack(rates), torch.stack(hazards)


def _panels_of(rate: sympy.Expr, formula: str) -> Iterator[tuple[float, float, Tensor]]:
    """Yield panels from t = 0 to 1, as start, end and Chebyshev series, halved until the series has
    the accuracy.
    """
    halves = 0.5 ** torch.arange(1, _HALVINGS + 1, dtype=torch.float64)
    # the rate may diverge at both ends; 1 - 2^-53 is the last float64 before 1
    edges = torch.cat([halves.new_zeros(1), halves, 1 - halves[:53]]).unique().tolist()
    waiting = list(pairwise(edges))[::-1]
    function = sympy.lambdify(TIME, rate, "mpmath")
    rough = _in_float64(rate)
    points, matrix = _chebyshev()
    beginning = 2.0**-53 * _value(function, 2.0**-53, formula)
    count = 0
    while waiting:
        low, high = waiting.pop()
        a = mpmath.mpf(low)
        b = mpmath.mpf(high)
        values = torch.tensor(
            [_value(function, a + (b - a) * x, formula) for x in points], dtype=torch.float64
        )
        series = (matrix * values).sum(1)
        times, approximate, scale = _doubtful(series, rough, low, high)
        exact = torch.tensor(
            [_value(function, time, formula) for time in times.tolist()], dtype=torch.float64
        )
        error = float(((approximate - exact).abs() / (exact + scale)).max())
        # no polynomial has an integrable singularity at 0, but it has no weight in panels that are
        # short enough
        accurate = error <= _ERROR or (
            low == 0 and high * _value(function, high, formula) <= 1e-15 * beginning
        )
        middle = (low + high) / 2
        count += 1
        if not accurate and low < middle < high and count < _PANELS:
            waiting += [(middle, high), (low, middle)]
            continue
        # the last panels before t = 1 cannot be halved in float64, and where the rate is so steep
        # alpha is 0
        require(
            accurate or (error <= 1e-6 and middle in (low, high)),
            f"formula {formula} is not resolved by {_PANELS} panels: near t = {low:.6g} it varies "
            "too fast, must be "
            "smooth inside (0, 1) and have a finite integral up to any t < 1",
        )
        yield low, high, series


def _doubtful(
    series: Tensor, rough: Callable[[Tensor], Tensor], low: float, high: float
) -> tuple[Tensor, Tensor, float]:
    """Return the time in each eighth of a panel at which a series deviates most from the formula in
    float64.

    Returns:
        the times, the rates there by the series, and 3 % of its maximum in the panel, where small
        rates lose digits.
    """
    count = max(32, math.ceil((high - low) / _SPACING / _TESTED))
    times = low + (high - low) * (torch.arange(_TESTED * count, dtype=torch.float64) + 0.5) / (
        _TESTED * count
    )
    place = 2 * (times - low) / (high - low) - 1
    with np.errstate(over="ignore", invalid="ignore"):
        approximate = torch.from_numpy(chebyshev.chebval(place.numpy(), series.numpy()))
    scale = 0.03 * float(approximate.abs().max()) + _TINY
    deviation = ((rough(times) - approximate).abs() / (approximate.abs() + scale)).nan_to_num(
        torch.inf
    )
    worst = deviation.view(_TESTED, count).argmax(1) + count * torch.arange(_TESTED)
    return times[worst], approximate[worst], scale


def _in_float64(rate: sympy.Expr) -> Callable[[Tensor], Tensor]:
    """Compile a formula for torch.

    The function returns NaN if torch has no function of that name.
    """
    function = Compiled(rate)
    try:
        function(torch.full((1,), 0.5, dtype=torch.float64))
    except (AttributeError, NameError, TypeError, NotImplementedError):
        return lambda t: t * torch.nan
    return function


def _diverges(rate: sympy.Expr) -> bool:
    r"""Return whether the integral up to t = 1 is infinite: the rate grows as :math:`1 / (d
    \log(1/d))` or faster.

    With d = 1 - t and L = log(1/d), the integral is that of d times the rate over L. It is infinite
    if this falls no faster than 1/L, so it is compared at two distances of which one has twice the
    L of the other.
    """
    function = sympy.lambdify(TIME, rate, "mpmath")
    with digits(500):
        near, far = (mpmath.mpf(10) ** -places for places in (100, 200))
        return bool(far * function(1 - far) >= near * function(1 - near) / 2.0001)


def _chebyshev() -> tuple[list[Any], Tensor]:
    """Chebyshev points inside (0, 1), exactly, and the matrix from values there to the coefficients
    of the series.
    """
    nodes = chebyshev.chebpts1(_DEGREE + 1)
    matrix = torch.tensor(chebyshev.chebvander(nodes, _DEGREE)).mT * (2 / (_DEGREE + 1))
    matrix[0] /= 2
    return [(mpmath.mpf(float(node)) + 1) / 2 for node in nodes], matrix


def _value(function: Callable[[Any], Any], t: Any, formula: str) -> float:
    try:
        # near t = 0 differences such as 1 - cos(t) cancel
        with mpmath.workdps(_DIGITS + math.ceil(4 * abs(mpmath.log10(t)))):
            value = function(mpmath.mpf(t))
        real = mpmath.im(value) == 0 or abs(mpmath.im(value)) < 1e-30 * abs(value)
        number = float(mpmath.re(value)) if real else float("nan")
    except (ValueError, ZeroDivisionError, TypeError, OverflowError):
        number = float("nan")
    require(
        0 <= number < math.inf,
        f"formula {formula} is {number:.6g} at t = {float(t):.6g}, must be a rate of at least 0, "
        "and finite",
    )
    return number
