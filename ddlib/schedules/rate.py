"""Schedule given by its rate."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import mpmath
import sympy
import torch
from numpy.polynomial import chebyshev
from torch import Tensor

from ddlib.schedules.base import Schedule
from ddlib.schedules.symbol import TIME
from ddlib.schedules.symbolic import exact_text, parsed
from ddlib.utils.bisection import bisected
from ddlib.utils.validation import require

_DEGREE, _HALVINGS, _DIGITS = 16, 64, 50
"""Degree of the polynomial of a panel; panels towards t = 0; decimal digits in which the formula is evaluated."""


class Rate(Schedule):
    r"""Schedule with a rate given as a formula in t: :math:`\alpha(t) = \exp(-\int_0^t \lambda(u)\,du)`.

    ``Hierarchical.from_occupancies`` makes the schedules of its edges in this way. The formula is evaluated in 50
    decimal digits when the object is made, at Chebyshev points of panels that halve towards both ends, and integrated
    as polynomials of degree 16. So formulas that cancel near an end lose no digits: rate and hazard are accurate to
    about 1e-13, also for a rate such as ``1/(1 - t)`` that has no finite value at t = 1.

    Args:
        formula: the rate, in jumps per unit of time, e.g. ``"1/(1 - t)"``, or a sympy expression in the symbol t. It is
            positive inside (0, 1), smooth, and its integral over time is infinite.

    Raises:
        TypeError: neither a string nor a sympy expression.
        ValueError: not a formula in t; a rate that is negative or no number; a finite integral.

    Example:
        >>> Rate("2/(1 - t)").alpha(torch.tensor([0.0, 0.5, 1.0]))
        tensor([1.0000, 0.2500, 0.0000])
    """

    def __init__(self, formula: str | sympy.Expr) -> None:
        self._expression = parsed(formula)
        self.formula = str(self._expression)
        self._grid, self._rates, self._hazards = _panels(self._expression, self.formula)
        self.check()

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls("1/(1 - t)"), cls("2*t/(1 - t**2) + 1/2")]

    def arguments(self) -> dict[str, Any]:
        """Return the formula as a string; a sympy expression is printed with all digits of its numbers."""
        return {"formula": exact_text(super().arguments()["formula"], self._expression)}

    def expression(self) -> sympy.Expr:
        """``alpha`` as a sympy expression, with the integral of the rate in closed form where sympy finds it."""
        time = sympy.Symbol("u", positive=True)
        return sympy.exp(-sympy.integrate(self._expression.subs(TIME, time), (time, 0, TIME)))

    def alpha(self, t: Any, xp: Any = torch) -> Any:
        if xp is torch:
            return torch.exp(-self.hazard(t))
        if xp is mpmath:
            return mpmath.exp(-mpmath.quad(sympy.lambdify(TIME, self._expression, "mpmath"), [0, t / 2, t]))
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
        return bisected(lambda t: self.hazard(t) < hazard, hazard)

    def _at(self, table: Tensor, t: Tensor) -> Tensor:
        """Evaluate the polynomial of the panel of each time."""
        time, grid = t.to(torch.float64), self._grid.to(t.device)
        panel = (torch.searchsorted(grid, time.contiguous(), right=True) - 1).clamp(0, len(grid) - 2)
        low, high = grid[panel], grid[panel + 1]
        place = 2 * (time - low) / (high - low) - 1
        coefficients = table.to(t.device)[panel]
        value, before = coefficients[..., -1], torch.zeros_like(time)
        for k in range(coefficients.shape[-1] - 2, 0, -1):  # Clenshaw's recurrence
            value, before = coefficients[..., k] + 2 * place * value - before, value
        return (coefficients[..., 0] + place * value - before).to(t.dtype)


def _panels(rate: sympy.Expr, formula: str) -> tuple[Tensor, Tensor, Tensor]:
    """Edges of the panels, and the Chebyshev series of rate and hazard in each."""
    halves = 0.5 ** torch.arange(1, _HALVINGS + 1, dtype=torch.float64)
    late = 1 - halves[:53]
    grid = torch.cat([halves.new_zeros(1), halves, late]).unique()
    function = sympy.lambdify(TIME, rate, "mpmath")
    rates, hazards, total = [], [], 0.0
    with mpmath.workdps(_DIGITS):  # the points too: a caller may work in another precision
        points, matrix = _chebyshev()
        for low, high in zip(grid[:-1].tolist(), grid[1:].tolist(), strict=True):
            a, b = mpmath.mpf(low), mpmath.mpf(high)
            values = torch.tensor([_value(function, a + (b - a) * x, formula) for x in points], dtype=torch.float64)
            series = (matrix * values).sum(1)
            rates.append(series)
            integral = torch.tensor(chebyshev.chebint(series.numpy(), lbnd=-1, scl=(high - low) / 2))
            integral[0] += total
            hazards.append(integral)
            total = float(chebyshev.chebval(1.0, integral.numpy()))
    require(
        total > 30, f"formula {formula} has the integral {total:.3g} over time, must be infinite: alpha(1) is not 0"
    )
    return grid, torch.stack(rates), torch.stack(hazards)


def _chebyshev() -> tuple[list[Any], Tensor]:
    """Chebyshev points inside (0, 1), exactly, and the matrix from values there to the coefficients of the series."""
    nodes = chebyshev.chebpts1(_DEGREE + 1)
    matrix = torch.tensor(chebyshev.chebvander(nodes, _DEGREE)).mT * (2 / (_DEGREE + 1))
    matrix[0] /= 2
    return [(mpmath.mpf(float(node)) + 1) / 2 for node in nodes], matrix


def _value(function: Callable[[Any], Any], t: Any, formula: str) -> float:
    try:
        value = function(t)
        real = mpmath.im(value) == 0 or abs(mpmath.im(value)) < 1e-30 * abs(value)
        found = float(mpmath.re(value)) if real else float("nan")
    except (ValueError, ZeroDivisionError, TypeError, OverflowError):
        found = float("nan")
    require(found >= 0, f"formula {formula} is {found:.6g} at t = {float(t):.6g}, must be a rate of at least 0")
    return found
