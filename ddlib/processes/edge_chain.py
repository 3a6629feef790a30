"""Level chains of a schedule per edge: transitions by quadrature, or in closed form for windows in
turn.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float64, Int64
from numpy.polynomial import chebyshev
from torch import Tensor
from torch.nn.functional import pad

from ddlib.processes.broadcasting import distinct_times
from ddlib.processes.chord import finite_flux
from ddlib.processes.level_chain import LevelChain
from ddlib.processes.level_transitions import normalise_rows
from ddlib.schedules import Schedule
from ddlib.schedules.base import breaks
from ddlib.utils.precision import Float64Module
from ddlib.utils.validation import require, visible

_DEGREE = 16
"""Degree of the polynomials of a panel."""
_PASSED = 2.0
"""Largest integrated rate of an edge within a panel."""
_PANELS = 20_000
"""Largest number of panels."""

_RESOLVED = 2.0**-37
"""Relative length below which float64 does not resolve the points of an interval; hazards are
linear there.
"""


class ScheduleChain(LevelChain):
    r"""Level chain of a schedule per edge.

    Edge i has the survival :math:`\alpha_i^{\gamma_i}` (theory section 15).

    At ends of windows inside (0, 1) at which the flux would diverge it is made finite, see
    ``chord.finite_flux``.

    Args:
        schedules: one per edge, the edge above the tokens first, see
            ``argument_checks.check_schedules``.
        speeds: one positive power per edge.
    """

    speeds: Tensor

    def __init__(
        self, schedules: Sequence[Schedule], speeds: Sequence[float] | Float64[Tensor, "n"]
    ) -> None:
        super().__init__()
        self.speeds = torch.as_tensor(speeds, dtype=torch.float64)
        self.schedules = tuple(map(finite_flux, schedules, self.speeds.tolist()))

    def inside(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return self._before(super().inside(t))

    def rates(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n edges"]:
        return self.speeds * torch.stack([schedule.rate(t) for schedule in self.schedules], -1)

    def entry_times(self, exponentials: Float64[Tensor, "*n edges"]) -> Float64[Tensor, "*n edges"]:
        time = torch.zeros_like(exponentials[..., 0])
        entries = []
        for schedule, hazard in zip(
            self.schedules, (exponentials / self.speeds).unbind(-1), strict=True
        ):
            time = schedule.time_of(schedule.hazard(time) + hazard).clamp(0, 1).maximum(time)
            entries.append(time)
        return torch.stack(entries, -1)

    def _before(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Return the last float before ``t`` where a schedule starts or ends inside (0, 1).

        At an end its flux is 0 times infinity. At a start it flows into a level that is empty.
        """
        for end in breaks(self.schedules):
            t = torch.where(t == end, t.nextafter(torch.zeros_like(t)), t)
        return t

    def _hazards(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n edges"]:
        return torch.stack([schedule.hazard(t) for schedule in self.schedules], -1)


def chain_of(
    schedules: Sequence[Schedule], speeds: Sequence[float] | Float64[Tensor, "n"]
) -> ScheduleChain:
    """Return the chain of these schedules: in closed form if each begins after the one before it
    has ended.
    """
    in_turn = all(low.support[1] <= high.support[0] for low, high in pairwise(schedules))
    return (TurnChain if in_turn else EdgeChain)(schedules, speeds)


class TurnChain(ScheduleChain):
    r"""Level chain of schedules that act one after the other, such as ``schedules.Window`` without
    overlap.

    An edge acts only after all edges below it have ended, so with :math:`S_i = \alpha_i(t) /
    \alpha_i(s)`

    .. math:: T_{ij}(s, t) = S_j \prod_{k=i}^{j-1} (1 - S_k)
    """

    def occupancies(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        return self.transition(torch.zeros_like(t), self._before(t))[..., 0, :]

    def transition(
        self, s: Float64[Tensor, "*n"], t: Float64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n m m"]:
        start = self._hazards(s)
        end = self._hazards(t)
        # an edge that ended before s has rate 0; one that ends by t has moved all, for every speed
        before = start.isinf()
        ended = end.isinf() & ~start.isinf()
        passed = torch.where(before | ended, 0.0, end - start) * self.speeds
        stay = pad(torch.where(ended, 0.0, torch.exp(-passed)), (0, 1), value=1.0)
        leave = torch.where(ended, 1.0, -torch.expm1(-passed))
        columns = []
        for j in range(stay.shape[-1]):
            column = [stay[..., j]]
            for i in reversed(range(j)):
                column.append(column[-1] * leave[..., i])
            columns.append(
                torch.stack(
                    [*reversed(column), *[torch.zeros_like(s)] * (stay.shape[-1] - 1 - j)], -1
                )
            )
        return torch.stack(columns, -1)


class EdgeChain(ScheduleChain):
    r"""Level chain of a schedule per edge, for any schedules (theory section 15).

    The transitions solve, with :math:`\lambda_j` the rate of edge j,

    .. math:: T_{ii}(s, t) = \frac{\alpha_i(t)}{\alpha_i(s)}, \qquad
        T_{ij}(s, t) = \int_s^t T_{i,j-1}(s, u)\, \lambda_{j-1}(u)\, T_{jj}(u, t)\, du, \quad j > i

    Time is divided into panels whose lengths halve towards the ends of every schedule's support, so
    that hazards are smooth within a panel; none has an integrated rate above 2. On a panel the
    integrals are those of polynomials of degree 16, with :math:`\lambda\, du` as the differential
    of the schedule's ``hazard``. Between panels transition matrices are multiplied. All terms are
    sums and products of non-negative numbers, so small probabilities keep their relative accuracy,
    about 1e-12 where hazards have it.

    Args:
        schedules: as for ``ScheduleChain``.
        speeds: likewise.

    Raises:
        ValueError: an edge so fast that more than 20,000 panels are necessary.
    """

    grid: Tensor

    def __init__(
        self, schedules: Sequence[Schedule], speeds: Sequence[float] | Float64[Tensor, "n"]
    ) -> None:
        super().__init__(schedules, speeds)
        self.polynomials = Polynomials(self.speeds.device)
        self.grid = self._panels()
        self.products = [self._step(self.grid[:-1], self.grid[1:])]
        while len(self.products[-1]) > (reach := 2 ** (len(self.products) - 1)):
            last = self.products[-1]  # of 1, 2, 4, ... adjacent panels
            self.products.append(normalise_rows(last[:-reach] @ last[reach:]))

    def occupancies(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        def from_tokens(time: Tensor) -> Tensor:
            panel = self._panel_before(time)
            whole = self._product(torch.zeros_like(panel), panel)[..., :1, :]
            return (whole @ self._step(self.grid[panel], time))[..., 0, :]

        return self._distinct(from_tokens, self._before(t))

    def transition(
        self, s: Float64[Tensor, "*n"], t: Float64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n m m"]:
        def between(early: Tensor, late: Tensor) -> Tensor:
            first = (torch.searchsorted(self.grid, early.contiguous(), right=True) - 1).clamp_max(
                len(self.grid) - 2
            )
            last = self._panel_before(late)
            alone = first >= last
            begin = self._step(early, torch.where(alone, late, self.grid[first + 1]))
            end = self._step(torch.where(alone, late, self.grid[last]), late)
            return begin @ self._product(first + 1, (last - first - 1).clamp_min(0)) @ end

        return self._distinct(between, s, t)

    def _panels(self) -> Float64[Tensor, "n"]:
        """Boundaries of the panels, from 0 to 1."""
        halves = 0.5 ** torch.arange(1, 110, dtype=torch.float64, device=self.speeds.device)
        grid = halves.new_tensor([0.0, *breaks(self.schedules), 1.0])
        for start, end in pairwise(grid.tolist()):
            last = torch.nextafter(halves.new_tensor(end), halves.new_zeros(()))
            grid = torch.cat(
                [grid, start + (end - start) * halves, end - (end - start) * halves, last[None]]
            )
        speeds = self.speeds
        grid = grid.unique()
        while True:
            passed = (self._hazards(grid) * speeds).diff(dim=0).nan_to_num(0.0, posinf=0.0)
            middle = (grid[:-1] + grid[1:]) / 2
            split = (passed > _PASSED).any(-1) & (middle > grid[:-1]) & (middle < grid[1:])
            if not bool(split.any()):
                return grid
            grid = torch.cat([grid, middle[split]]).sort().values
            fastest = int(passed.amax(0).argmax())
            require(
                len(grid) <= _PANELS,
                f"the edge of speed {float(speeds[fastest]):g} with {self.schedules[fastest]!r} is "
                "too fast compared "
                f"with the other schedules: its integral requires more than {_PANELS} panels, use "
                "a lower speed",
            )

    def _panel_before(self, t: Float64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """Index of the panel that contains the times just before ``t``."""
        return (torch.searchsorted(self.grid, t.contiguous()) - 1).clamp_min(0)

    def _product(
        self, first: Int64[Tensor, "*n"], count: Int64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n m m"]:
        """Transition over ``count`` whole panels from panel ``first`` on."""
        size = len(self.speeds) + 1
        result = torch.eye(size, dtype=torch.float64, device=self.grid.device).expand(
            *first.shape, size, size
        )
        for k, products in enumerate(self.products):
            used = (count >> k) % 2 == 1
            result = torch.where(
                used[..., None, None], result @ products[first.clamp_max(len(products) - 1)], result
            )
            first = first + (used.long() << k)
        return result

    def _step(
        self, s: Float64[Tensor, "*n"], t: Float64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n m m"]:
        """Transition from s to t within one panel."""
        n = len(self.speeds)
        hazards = self._hazards(self.polynomials.nodes(s, t))
        ended = hazards[..., :1, :].isinf()
        passed = hazards - hazards[..., :1, :]
        ends = hazards[..., -1, :].isinf() & ~ended[..., 0, :]
        # an edge that ended before s has rate 0; one that ends at t, the next float, empties its
        # level
        passed = torch.where(ended | ends[..., None, :], 0.0, passed) * self.speeds
        straight = self.polynomials.points[:, None] * passed[..., -1:, :]
        passed = torch.where((t - s < _RESOLVED * t)[..., None, None], straight, passed)
        stays = pad(torch.exp(-passed), (0, 1), value=1.0)
        slope = self.polynomials.derivative(passed)
        rows = []
        for i in range(n + 1):
            reached = stays[..., i]
            row = [torch.zeros_like(s)] * i + [stays[..., -1, i]]
            for j in range(i + 1, n + 1):
                arrivals = self.polynomials.integral(reached / stays[..., j] * slope[..., j - 1])
                reached = stays[..., j] * arrivals
                row.append(reached[..., -1])
            rows.append(torch.stack(row, -1))
        return normalise_rows(torch.stack(rows, -2).clamp_min(0) @ _moves(ends))

    def _distinct(self, function: Callable[..., Tensor], *times: Float64[Tensor, "*n"]) -> Tensor:
        """Evaluate ``function`` once for each distinct time."""
        if not all(map(visible, times)) or any(time.requires_grad for time in times):
            return function(*times)
        columns, which = distinct_times(*times)
        return function(*columns)[which]


class Polynomials(Float64Module):
    """Derivative and integral of functions given at Chebyshev points of an interval."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        points = chebyshev.chebpts2(_DEGREE + 1)
        series = torch.tensor(chebyshev.chebvander(points, _DEGREE)).inverse().numpy()
        derivative = chebyshev.chebvander(points, _DEGREE - 1) @ chebyshev.chebder(series)
        integral = chebyshev.chebvander(points, _DEGREE + 1) @ chebyshev.chebint(series, lbnd=-1)
        self.points, self.derivatives, self.integrals = (
            torch.tensor(each, device=device) for each in ((points + 1) / 2, derivative, integral)
        )

    def nodes(
        self, start: Float64[Tensor, "*n"], end: Float64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n k"]:
        """Points of the interval, both ends included exactly."""
        inner = start[..., None] + (end - start)[..., None] * self.points[1:-1]
        return torch.cat([start[..., None], inner, end[..., None]], -1)

    def derivative(self, values: Float64[Tensor, "*n k m"]) -> Float64[Tensor, "*n k m"]:
        """Derivatives of functions of the point, per unit of the reference interval [-1, 1]."""
        return torch.einsum("kl,...lm->...km", self.derivatives, values)

    def integral(self, values: Float64[Tensor, "*n k"]) -> Float64[Tensor, "*n k"]:
        """Integrals from the first point to each point, over the reference interval [-1, 1]."""
        return values @ self.integrals.mT


def _moves(ends: Bool[Tensor, "*n edges"]) -> Float64[Tensor, "*n m m"]:
    """Transition that empties every level whose edge ends, lowest first, into the next."""
    n = ends.shape[-1]
    result = torch.eye(n + 1, dtype=torch.float64, device=ends.device).expand(
        *ends.shape[:-1], n + 1, n + 1
    )
    for i in range(n):
        move = torch.eye(n + 1, dtype=torch.float64, device=ends.device).repeat(
            *ends.shape[:-1], 1, 1
        )
        move[..., i, i], move[..., i, i + 1] = (~ends[..., i]).double(), ends[..., i].double()
        result = result @ move
    return result
