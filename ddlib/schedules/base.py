"""Abstract base class of noise schedules."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ddlib.config.part import Part
from ddlib.utils.agreement import check_agreement
from ddlib.utils.bisection import bisect
from ddlib.utils.derivative import derivative
from ddlib.utils.imports import import_quietly
from ddlib.utils.repr import format_part
from ddlib.utils.validation import require

_LAST_TIME = 1 - 2**-24
"""The last float32 time before 1."""
_LONGEST = 744.0
"""The largest -log alpha that float64 resolves."""
_NOTHING = 1e-15
"""A negligible share of tokens."""
_CELLS = 128
_UNACCOUNTED = 1e-6
"""Largest difference of alpha's fall in a cell from the integral of rate * alpha."""
_OF_ALPHA = ("alpha_prime", "rate", "hazard", "inverse", "time_of", "expression")
"""Methods that follow from ``alpha``."""


def _gauss_legendre(points: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1] in float64 (Golub and Welsch, 1969)."""
    k = torch.arange(1, points, dtype=torch.float64)
    off_diagonal = k / (4 * k**2 - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    return (nodes + 1) / 2, vectors[0] ** 2


class Schedule(Part):
    r"""Survival probability alpha(t) of a token, decreasing from 1 at t = 0 to 0 at t = 1.

    A subclass implements ``alpha`` once, with a namespace argument, so that sympy differentiates
    the same line that torch runs. All other methods have defaults. A subclass may override
    ``rate``, ``hazard`` or ``inverse`` by closed forms that are more accurate or faster; the tests
    compare them with ``alpha``. A subclass with another ``alpha`` cannot inherit them: TypeError.

    All methods act elementwise on a tensor of any shape and keep its dtype; processes call them in
    float64.

    Example:
        >>> class Square(Schedule):
        ...     def alpha(self, t, xp=torch):
        ...         return (1 - t) ** 2
        >>> Square().rate(torch.tensor([0.5]))
        tensor([4.])
    """

    exact_ends: ClassVar[bool] = True
    """False if alpha(0) < 1 or alpha(1) > 0; the bound then has a reconstruction term and a prior
    term.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_agreement(cls, "alpha", *_OF_ALPHA)

    @property
    def support(self) -> tuple[float, float]:
        """Interval of time in which tokens jump; alpha is constant before and after."""
        return 0.0, 1.0

    @property
    def kinks(self) -> tuple[float, ...]:
        """Times in [0, 1] at which the rate is not smooth: by default the ends of ``support``.

        A schedule in pieces overrides it with the ends of support and of all pieces: times are
        drawn, and integrals computed, between them.
        """
        return self.support

    @abstractmethod
    def alpha(self, t: Any, xp: Any = torch) -> Any:
        """Probability that a token of unit speed has not jumped by time ``t``.

        ``xp`` is torch or sympy.
        """

    def alpha_prime(self, t: Tensor) -> Tensor:
        """d alpha / dt, by forward-mode differentiation of ``alpha``; may be infinite at an end."""
        return derivative(self.alpha, t)

    def rate(self, t: Tensor) -> Tensor:
        """-alpha'(t) / alpha(t), in jumps per unit of time; infinite at t = 1 when alpha(1) = 0."""
        return -self.alpha_prime(t) / self.alpha(t)

    def hazard(self, t: Tensor) -> Tensor:
        """-log alpha(t), the rate integrated from 0, without cancellation at small ``t``.

        Where alpha is close to 1, -log alpha suffers from cancellation, and the rate is integrated
        instead, by quadrature in the variable (u/t)^(1/4). That variable also removes an algebraic
        singularity of the rate at 0.
        """
        direct = -self.alpha(t).log()
        nodes, weights = (v.to(t) for v in self._quadrature)
        # above 0, where the rate may be infinite and 0 * inf would be NaN
        rates = self.rate((t[..., None] * nodes**4).clamp_min(torch.finfo(t.dtype).tiny))
        integral = t * (rates * (weights * 4 * nodes**3)).sum(-1)
        # the hazard at 0, if alpha(0) is below 1
        integral = integral - self.alpha(torch.zeros_like(t)).log()
        return torch.where(direct < 1e-2, integral, direct)

    def inverse(self, alpha: Tensor) -> Tensor:
        """Return the time t with alpha(t) = ``alpha``, by bisection to 2^-60."""
        target = alpha.to(torch.float64)
        return bisect(lambda t: self.alpha(t) > target, target).to(alpha.dtype)

    def time_of(self, hazard: Tensor) -> Tensor:
        """Return the time t with -log alpha(t) = ``hazard``.

        By default 1 where exp(-hazard) is 0 in float64.

        Args:
            hazard: float64 of any shape, in [0, inf].
        """
        return self.inverse((-hazard).exp())

    def expression(self) -> Any:
        """``alpha`` as a ``sympy.Expr`` in the symbol ``t`` (real, positive)."""
        sympy = import_quietly("sympy")  # imported here: training does not need it
        return sympy.sympify(self.alpha(import_quietly("ddlib.schedules.symbol").TIME, xp=sympy))

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Instances on which a registered class is verified.

        Override if the constructor requires arguments.
        """
        return [cls()]

    def falls(self, t: Tensor) -> Tensor:
        """Return whether alpha decreases between consecutive (increasing) times ``t``, up to
        float64 precision.
        """
        alpha = self.alpha(t).detach()
        step = alpha.diff()
        falls = step < 0
        flat = (alpha[1:] > 1 - 1e-15) & (step == 0)
        # 1 - t^6 starts so flat that it rounds to 1: there the derivative decides
        if bool(flat.any()):
            falls |= flat & (self.alpha_prime((t[:-1] + t[1:]) / 2) < 0)
        if bool((alpha > 0).any()) and float(alpha[alpha > 0].min()) < 1e-100:
            falls |= alpha[:-1] == 0  # exp(-t / (1 - t)) underflows before t reaches 1
        return falls

    def unaccounted(self) -> tuple[Tensor, Tensor]:
        r"""Compare the falls of alpha with :math:`\int r \alpha\, dt` over 128 cells or more.

        Returns:
            times (N,) at which the cells begin, and fall less integral (N,): 0 up to rounding where
            alpha is continuous, rate is -alpha' / alpha, and kinks has all times at which the rate
            is not smooth. 0 too where float64 does not resolve the fall at the end of a piece.
        """
        regular = torch.linspace(0, 1, _CELLS + 1, dtype=torch.float64)
        pieces = torch.tensor([0.0, *breaks([self]), 1.0], dtype=torch.float64)
        # a cell beside the end of a piece may not have the singularity just outside
        distance = (regular[:, None] - pieces).abs().amin(1)
        inner = regular[distance > 0.5 / _CELLS]
        edges = torch.cat([inner, pieces, (pieces[1:] + pieces[:-1]) / 2]).unique()
        start = edges[:-1, None]
        end = edges[1:, None]
        begins = torch.isin(start, pieces)
        ends = torch.isin(end, pieces)
        nodes, weights = self._quadrature
        # the power removes an algebraic singularity of the rate at the end of a piece
        near_end = nodes**16
        t = start + (end - start) * torch.where(begins, near_end, nodes)
        t = torch.where(ends & ~begins, end - (end - start) * near_end, t)
        t = t.clamp(torch.finfo(t.dtype).tiny, 1 - 2.0**-53)
        weights = torch.where(begins | ends, weights * 16 * nodes**15, weights)
        alpha = self.alpha(t)
        rate = self.rate(t)
        # near an end the rate of a rounded alpha may be infinite
        integrand = torch.where((alpha > 0) & rate.isfinite(), rate * alpha, 0.0)
        integral = ((end - start) * weights * integrand).sum(1)
        difference = -self.alpha(edges).diff() - integral
        # (1 - t)^0.1 falls by 0.02 between the last float64 time and 1
        near = 2.0**-52
        far = 2.0**-40
        last = ends & (self.alpha(end - far) - self.alpha(end - near) > _UNACCOUNTED)
        first = begins & (self.alpha(start + near) - self.alpha(start + far) > _UNACCOUNTED)
        difference = torch.where((last | first)[:, 0], 0.0, difference)
        return edges[:-1], difference.detach()

    def check(self) -> None:
        """Raise ValueError unless alpha is finite, decreasing, (with exact ends) 1 at t = 0 and 0
        at t = 1, and agrees with rate, hazard and inverse.
        """
        name = type(self).__name__
        outside = [kink for kink in self.kinks if not 0 <= kink <= 1]
        require(not outside, f"{name}: kinks holds {outside}, must be times in [0, 1]")
        t = torch.linspace(0, 1, 1025, dtype=torch.float64)
        alpha = self.alpha(t)
        if not isinstance(alpha, Tensor):
            raise TypeError(
                f"{name}: alpha returns {type(alpha).__name__}, must return a tensor of torch"
            )
        for bad, rule in (
            (~alpha.isfinite(), "must be finite"),
            ((alpha < -1e-12) | (alpha > 1 + 1e-12), "must lie in [0, 1]"),
        ):
            if bool(bad.any()):
                raise ValueError(
                    f"{name}: alpha({t[bad][0].item():g}) is {alpha[bad][0].item()}, {rule}"
                )
        falls = self.falls(t)
        if not bool(falls.all()):
            where = t[:-1][~falls][0].item()
            raise ValueError(
                f"{name}: alpha does not decrease after t = {where:g}, must be strictly decreasing"
            )
        unknown = self.rate(t[1:-1]).isnan()
        if bool(unknown.any()):
            where = t[1:-1][unknown][0].item()
            raise ValueError(
                f"{name}: rate({where:g}) is not a number, since alpha({where:g}) is "
                f"{alpha[1:-1][unknown][0]:g}: "
                "override rate and hazard by formulas that do not divide by alpha"
            )
        if self.exact_ends:
            require(
                abs(alpha[0].item() - 1) < 1e-9, f"{name}: alpha(0) is {alpha[0].item()}, must be 1"
            )
            require(
                abs(alpha[-1].item()) < 1e-9, f"{name}: alpha(1) is {alpha[-1].item()}, must be 0"
            )
        self._check_forms(t[16:-1:16], alpha[16:-1:16])

    def _check_forms(self, t: Tensor, alpha: Tensor) -> None:
        """Raise ValueError unless rate, hazard and inverse agree with alpha, given some of its
        values.
        """
        name = type(self).__name__
        times, difference = self.unaccounted()
        worst = difference.abs().argmax()
        require(
            bool(difference.abs()[worst] < _UNACCOUNTED),
            f"{name}: from t = {times[worst].item():g} on alpha falls by "
            f"{difference[worst].item():.3g} more than the integral of rate * alpha: alpha must be "
            "continuous, rate must be -alpha'/alpha, and kinks must hold the times at which alpha "
            "has a kink",
        )
        # of an alpha that is flat or steep, hazard and inverse are not resolved
        resolved = (alpha > 1e-6) & (alpha < 1 - 1e-6)
        hazard = (self.hazard(t) + alpha.log()).abs() > _UNACCOUNTED * alpha.log().abs()
        time = self.inverse(alpha)
        inverse = (self.alpha(time - 1e-9) < alpha - 1e-9) | (
            self.alpha(time + 1e-9) > alpha + 1e-9
        )
        for method, wrong in (("hazard", hazard), ("inverse", inverse)):
            times = t[wrong & resolved]
            require(
                len(times) == 0,
                f"{name}: {method} contradicts alpha at t = {times[:1].tolist()}, must agree",
            )

    def check_resolves(self, part: str, share_left: Callable[[float], float]) -> None:
        """Raise unless -log alpha is finite until all but a negligible share of the tokens are
        noise.

        If alpha underflows to 0 before t = 1, -log alpha is infinite from then on. An edge of speed
        about 1 has no tokens left at that time; an edge of speed 0.001 still has half of them.

        Args:
            part: name of the part that is too slow, for the error message.
            share_left: maps a value of -log alpha to the share of tokens that are not noise yet.

        Raises:
            ValueError: the schedule is not resolved for this part.
        """
        if bool(self.hazard(torch.tensor([_LAST_TIME], dtype=torch.float64)).isfinite()):
            return
        share = share_left(_LONGEST)
        if share > _NOTHING:
            end = float(self.inverse(torch.tensor(5e-324, dtype=torch.float64)))
            raise ValueError(
                f"{part} is too slow for {self!r}, which is 0 in float64 from t = {end:.6g} on: at "
                "that time a share "
                f"of {share:.2g} of the tokens is not noise. Use a speed of at least 0.05, or a "
                "schedule that "
                "overrides hazard"
            )

    @cached_property
    def _quadrature(self) -> tuple[Tensor, Tensor]:
        return _gauss_legendre(32)

    def __repr__(self) -> str:
        return format_part(self, Schedule)


def breaks(schedules: Iterable[Schedule]) -> list[float]:
    """Return the times inside (0, 1) at which a schedule begins or ends or has another kink,
    sorted.
    """
    return sorted({kink for schedule in schedules for kink in schedule.kinks} - {0.0, 1.0})
