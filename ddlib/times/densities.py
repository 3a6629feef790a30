"""Densities of times: beta, logit-normal and piecewise constant."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.times.base import TimeDensity
from ddlib.utils.imports import import_quietly
from ddlib.utils.repr import digest
from ddlib.utils.validation import check_number, require


class Beta(TimeDensity):
    r"""Beta distribution of times: concentrated in the middle or at the ends, depending on ``a``
    and ``b``.

    .. math:: g(t) = \frac{t^{a-1} (1 - t)^{b-1}}{B(a, b)}

    a = b = 1 is uniform. With a parameter above 1, times near its end are drawn rarely and have
    large weights; below 1 they are drawn often. The distribution function and its inverse are
    computed by scipy on the CPU, so an accelerator waits for the host.

    Args:
        a: exponent at t = 0, in [0.1, 40]; the larger, the fewer times near 0.
        b: exponent at t = 1, in [0.1, 40]; the larger, the fewer times near 1. Above 40
            the density near an end is below the smallest number of float64.

    Raises:
        ValueError: a parameter out of range.
    """

    def __init__(self, a: float, b: float) -> None:
        self.a = check_number("a", a, 0.1, 40, "in [0.1, 40]")
        self.b = check_number("b", b, 0.1, 40, "in [0.1, 40]")
        self._log_total = math.lgamma(self.a) + math.lgamma(self.b) - math.lgamma(self.a + self.b)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(0.5, 0.5), cls(2.0, 1.0), cls(3.0, 1.5)]

    def density(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.exp((self.a - 1) * t.log() + (self.b - 1) * torch.log1p(-t) - self._log_total)

    def cumulative(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return self._by("betainc", t)

    def inverse(self, u: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return self._by("betaincinv", u)

    def _by(self, name: str, values: Tensor) -> Tensor:
        # slow to load, and most training does not need it
        function = getattr(import_quietly("scipy.special"), name)
        result = torch.as_tensor(
            function(self.a, self.b, values.cpu().numpy()), dtype=torch.float64
        )
        return result.to(values.device)


class Bell(TimeDensity):
    r"""Logit-normal distribution of times (Esser et al., 2024): normal log-odds, few times near 0
    and 1.

    .. math:: \log \frac{t}{1-t} \sim N(\mathrm{mean}, \mathrm{spread}^2)

    If the bound's integrand does not vanish at the ends, as for masked diffusion, the few draws
    there have large weights. So this density is meant for training with ``weigh_times: false``
    rather than for a bound.

    Args:
        mean: mean of the log-odds, in [-3, 3]; 0 is t = 1/2.
        spread: standard deviation of the log-odds, in [0.5, 10]; about 1.8 is nearest to uniform.
            Below 0.5, g would underflow near 0 and 1.

    Raises:
        ValueError: a parameter out of range.
    """

    def __init__(self, mean: float = 0.0, spread: float = 1.0) -> None:
        self.mean = check_number("mean", mean, -3, 3, "in [-3, 3]")
        self.spread = check_number("spread", spread, 0.5, 10, "in [0.5, 10]")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(-1.0, 2.0)]

    def density(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        scaled = self._log_odds(t)
        return torch.exp(-(scaled**2) / 2 - t.log() - torch.log1p(-t)) / (
            self.spread * math.sqrt(2 * math.pi)
        )

    def cumulative(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.special.ndtr(self._log_odds(t))

    def inverse(self, u: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return torch.special.expit(self.mean + self.spread * torch.special.ndtri(u))

    def _log_odds(self, t: Tensor) -> Tensor:
        return (torch.logit(t) - self.mean) / self.spread


class Tabulated(TimeDensity):
    """Histogram density: constant between edges.

    Distribution function, inverse and weight are exact. So if the table approximates another
    density, a coarse table increases the variance but does not change the expectation.
    ``process.time_density`` returns such tables.

    Args:
        edges: (n + 1,) times from 0 to 1, increasing.
        masses: (n,) positive numbers, the probability of each cell up to normalisation.

    Raises:
        ValueError: edges that do not increase from 0 to 1, masses that are not positive and finite,
            sizes that do not match.

    Example:
        >>> Tabulated([0.0, 0.5, 1.0], [1.0, 3.0]).weight(torch.tensor([0.2, 0.7]))
        tensor([2.0000, 0.6667], dtype=torch.float64)
    """

    edges: Tensor
    masses: Tensor

    def __init__(self, edges: Sequence[float] | Tensor, masses: Sequence[float] | Tensor) -> None:
        # a copy: later changes of the caller's tensors must not change the table
        edges, masses = (
            torch.as_tensor(v, dtype=torch.float64).detach().clone() for v in (edges, masses)
        )
        require(
            edges.ndim == masses.ndim == 1 and len(edges) == len(masses) + 1 >= 2,
            f"edges has shape {tuple(edges.shape)} and masses {tuple(masses.shape)}, must be (n + "
            "1,) and (n,), n >= 1",
        )
        widths = edges.diff()
        require(
            float(edges[0]) == 0 and float(edges[-1]) == 1 and bool((widths > 0).all()),
            f"edges run from {float(edges[0]):g} to {float(edges[-1]):g}, must increase from 0 to "
            "1",
        )
        bad = ~(masses.isfinite() & (masses > 0))
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            raise ValueError(
                f"masses[{first}] is {float(masses[first])}, must be positive and finite: times "
                "that are not drawn "
                "would bias the bound"
            )
        shares = masses / masses.max()
        self.edges = edges
        self.masses = shares / shares.sum()
        self.declare(masses=masses)  # as given: normalised ones change when normalised again
        self._heights = self.masses / widths
        # the last entry is 1 up to rounding; set it to exactly 1
        self._reached = torch.cat(
            [masses.new_zeros(1), self.masses.cumsum(0)[:-1], masses.new_ones(1)]
        )
        lost = self._reached.diff() <= 0
        if bool(lost.any()):
            first = int(lost.nonzero()[0])
            raise ValueError(
                f"masses[{first}] is {float(masses[first])}, negligible compared with "
                f"{float(masses.max()):g}, must "
                "be at least 1e-16 of the sum: times that are not drawn would bias the bound"
            )

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls([0.0, 1.0], [1.0]), cls([0.0, 0.1, 0.5, 1.0], [3.0, 1.0, 2.0])]

    def density(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return self._heights.to(t.device)[self._cell(self.edges, t)]

    def cumulative(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return self._interpolate(self.edges, self._reached, t)

    def inverse(self, u: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return self._interpolate(self._reached, self.edges, u)

    def check(self) -> None:
        """Do nothing: density and distribution function come from one table and are consistent."""

    def __repr__(self) -> str:
        return f"Tabulated({len(self.masses)} cells, {digest(self.edges, self.masses)})"

    def _interpolate(self, xs: Tensor, ys: Tensor, values: Tensor) -> Tensor:
        """Evaluate the piecewise linear function through the points (``xs``, ``ys``) at
        ``values``.
        """
        cell = self._cell(xs, values)
        xs = xs.to(values.device)
        ys = ys.to(values.device)
        low = ys[cell]
        high = ys[cell + 1]
        share = (values - xs[cell]) / (xs[cell + 1] - xs[cell])
        return (low + share * (high - low)).clamp(low, high)

    def _cell(self, edges: Tensor, values: Tensor) -> Int64[Tensor, "*n"]:
        cell = torch.searchsorted(edges.to(values.device), values.contiguous(), right=True) - 1
        return cell.clamp(0, len(self.masses) - 1)
