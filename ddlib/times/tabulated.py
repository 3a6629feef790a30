"""Piecewise constant density of times."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.times.base import TimeDensity
from ddlib.utils.repr import digest
from ddlib.utils.validation import require


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
        found = torch.searchsorted(edges.to(values.device), values.contiguous(), right=True) - 1
        return found.clamp(0, len(self.masses) - 1)
