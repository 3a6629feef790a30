"""Occupancies of levels given as formulas, and the schedules of the edges that follow from them."""

from collections.abc import Sequence

import mpmath
import sympy

from ddlib.schedules.rate import Rate
from ddlib.schedules.symbol import TIME
from ddlib.schedules.symbolic import as_expression, digits, limit
from ddlib.utils.validation import require

_TIMES = [1e-6, 1e-4, *(k / 64 for k in range(1, 64)), 1 - 1e-4, 1 - 1e-6]
_NEGATIVE = 1e-9
"""Relative tolerance of a flux that is 0, such as that of an edge that acts later."""


class Occupancies:
    r"""Probabilities :math:`a_i(t)` of the levels below the mask, as formulas.

    Sympy derives fluxes, rates and weights.

    Paper Proposition 1 is stated for any occupancies :math:`\alpha_t, \beta_{t,c}`. They determine
    the flux over each edge, :math:`F_i = -\sum_{j \le i} a_j'`, the rate of the edge,
    :math:`\lambda_i = F_i / a_i`, and the weight of the level above, :math:`w_{i+1} = F_i /
    a_{i+1}` (theory section 15).

    Args:
        formulas: one for each level below the mask, tokens first: strings in t, or sympy
            expressions.

    Raises:
        TypeError: neither strings nor sympy expressions.
        ValueError: a formula that is not 1 (tokens) or 0 (other levels) at t = 0, or not 0 at t =
            1; an occupancy or a flux that is negative, or a sum above 1, with the time and the
            edge.

    Example:
        >>> Occupancies(["1 - t", "-(1 - t)*log(1 - t)"]).rates
        (-1/(t - 1), -1/(t - 1))
    """

    def __init__(self, formulas: Sequence[str | sympy.Expr]) -> None:
        require(
            not isinstance(formulas, str) and len(formulas) > 0,
            f"formulas is {formulas!r}, must be a list of one formula for each level below the "
            "mask",
        )
        self.occupancies = tuple(map(as_expression, formulas))
        for i, (formula, occupancy) in enumerate(zip(formulas, self.occupancies, strict=True)):
            for point, value in ((0, int(i == 0)), (1, 0)):
                end, agrees = limit(occupancy, point, value)
                require(
                    agrees,
                    f"formulas[{i}] = {formula} tends to {end} at t = {point}, must be {value}",
                )
        self.fluxes = _fluxes(self.occupancies)
        self._check()
        self.rates = tuple(map(_ratio, self.fluxes, self.occupancies))

    @property
    def weights(self) -> tuple[sympy.Expr, ...]:
        """Loss weight of each level above the tokens, the mask last, in nats per nat of
        divergence.
        """
        mask = sympy.simplify(1 - sum(self.occupancies))
        return tuple(map(_ratio, self.fluxes, (*self.occupancies[1:], mask)))

    def schedules(self) -> list[Rate]:
        """Return the schedule of each edge.

        Raises:
            ValueError: a rate that is not a number inside (0, 1), or whose integral is finite.
        """
        result = []
        for i, rate in enumerate(self.rates):
            try:
                result.append(Rate(rate))
            except ValueError as error:
                raise ValueError(
                    f"the rate of edge {i}, from level {i} to {i + 1}: {error}"
                ) from None
        return result

    def _check(self) -> None:
        sides = self.occupancies, self.fluxes
        levels, fluxes = ([sympy.lambdify(TIME, each, "mpmath") for each in side] for side in sides)
        with digits(40):
            for t in map(mpmath.mpf, _TIMES):
                shares = [level(t) for level in levels]
                flows = [flux(t) for flux in fluxes]
                for i, (share, flow) in enumerate(zip(shares, flows, strict=True)):
                    require(
                        mpmath.im(share) == 0 and share >= 0,
                        f"formulas[{i}] is {mpmath.nstr(share, 6)} at t = {float(t):g}, must be a "
                        "probability",
                    )
                    require(
                        flow >= -_NEGATIVE * max(1, abs(flows[0])),
                        f"the flux over edge {i}, from level {i} to {i + 1}, is "
                        f"{mpmath.nstr(flow, 6)} at "
                        f"t = {float(t):g}, must be at least 0: no position returns to a lower "
                        "level",
                    )
                require(
                    sum(shares) <= 1 + _NEGATIVE,
                    f"formulas have the sum {mpmath.nstr(sum(shares), 8)} at t = {float(t):g}, "
                    "must be at most 1: "
                    "the difference to 1 is the probability of the mask",
                )


def _fluxes(occupancies: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """Flux over the edge above each level: what levels up to it lose."""
    occupied = sympy.Integer(0)
    fluxes = []
    for occupancy in occupancies:
        occupied = occupied + occupancy
        fluxes.append(sympy.simplify(-sympy.diff(occupied, TIME)))
    return tuple(fluxes)


def _ratio(above: sympy.Expr, below: sympy.Expr) -> sympy.Expr:
    return sympy.simplify(above / below)
