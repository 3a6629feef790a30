"""Markov chain of the level of a position, independent of the state within the level."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from ddlib.processes.broadcasting import (
    elapsed,
    gather_columns,
    interior,
    quotient,
    unsqueeze_times,
)
from ddlib.processes.level_transitions import transitions_of
from ddlib.schedules import Schedule
from ddlib.utils.precision import Float64Module


class LevelChain(Float64Module):
    """Pure-birth chain through the levels 0..n, as functions of time; rates are per unit of time.

    A subclass implements ``rates``, ``occupancies``, ``transition`` and ``entry_times``. Times are
    float64.
    """

    def inside(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Return times clamped by a rounding error from those at which rates are infinite."""
        return interior(t)

    @abstractmethod
    def rates(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n edges"]:
        """Return the rate of each edge at times that ``inside`` returned."""

    @abstractmethod
    def occupancies(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        """Return a_i(t), the probability of each level, from tokens at t = 0."""

    def at_most(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n edges"]:
        """Return the probability of level i or a lower one, for all levels but the last."""
        return self.occupancies(t)[..., :-1].cumsum(-1)

    @abstractmethod
    def transition(
        self, s: Float64[Tensor, "*n"], t: Float64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n m m"]:
        """Return T_ij, the probability of level j at t given level i at s <= t."""

    @abstractmethod
    def entry_times(self, exponentials: Float64[Tensor, "*n edges"]) -> Float64[Tensor, "*n edges"]:
        """Return the times at which levels 1..n are entered, 2 for never, from standard exponential
        draws.
        """

    def flux(
        self, occupancies: Float64[Tensor, "*n m"], t: Float64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n edges"]:
        """Return F_i, the flux over each edge, from the occupancies at times that ``inside``
        returned.
        """
        occupied = occupancies[..., :-1]
        return torch.where(occupied > 0, occupied * self.rates(t), 0.0)

    def inflow(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        """Return F_{i-1}, the flux into each level, per unit of time; 0 for tokens."""
        t = self.inside(t)
        return pad(self.flux(self.occupancies(t), t), (1, 0))

    def weights(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        r"""Return :math:`w_i = F_{i-1} / a_i`, flux into a level over its occupancy.

        0 for tokens and empty levels.
        """
        t = self.inside(t)
        occupancies = self.occupancies(t)
        return pad(quotient(self.flux(occupancies, t), occupancies[..., 1:]), (1, 0))

    def rate_matrix(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m m"]:
        """Return the rate matrix between levels; rows sum to 0."""
        rates = self.rates(self.inside(t))
        return torch.diag_embed(rates, 1) - torch.diag_embed(pad(rates, (0, 1)))


class PowerChain(LevelChain):
    r"""Level chain of one schedule.

    Edge i has the survival :math:`\alpha^{\gamma_i}`, a power of the schedule.

    In units of :math:`\sigma = -\log \alpha` the rates are constant. So occupancies follow the
    hypoexponential distribution, accurately for distinct, equal and nearly equal speeds.

    Args:
        schedule: the schedule alpha.
        speeds: one positive power per edge.
    """

    speeds: Tensor

    def __init__(self, schedule: Schedule, speeds: Sequence[float] | Float64[Tensor, "n"]) -> None:
        super().__init__()
        self.schedule = schedule
        self.speeds = torch.as_tensor(speeds, dtype=torch.float64)
        self.generator = transitions_of(self.speeds.tolist())

    def rates(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n edges"]:
        return self.speeds * self.schedule.rate(t)[..., None]

    def occupancies(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        return self.generator.from_tokens(self.schedule.hazard(t))

    def at_most(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n edges"]:
        return self.generator.at_most(self.schedule.hazard(t))

    def transition(
        self, s: Float64[Tensor, "*n"], t: Float64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n m m"]:
        return self.generator(elapsed(self.schedule, s, t))

    def entry_times(self, exponentials: Float64[Tensor, "*n edges"]) -> Float64[Tensor, "*n edges"]:
        hazard = (exponentials / self.speeds).cumsum(-1)
        reached = hazard <= self.schedule.hazard(torch.ones_like(self.speeds[0]))
        return torch.where(reached, self.schedule.time_of(hazard).clamp(0, 1), 2.0)

    def flux(
        self, occupancies: Float64[Tensor, "*n m"], t: Float64[Tensor, "*n"]
    ) -> Float64[Tensor, "*n edges"]:
        rate = self.schedule.rate(t)[..., None]
        rate = torch.where(
            rate.isinf(), 0.0, rate
        )  # where alpha underflows, and occupancies, clamped above 0, do not
        return occupancies[..., :-1] * self.speeds * rate


def max_remask_prob(joint: Float64[Tensor, "*n levels levels"]) -> Float64[Tensor, "*n m"]:
    """Return the largest remask probability of each edge in ``remask_coupling``, (B, n), or (B, L,
    n).

    It moves all the mass that would stay on one side of the edge. A level with edges on both sides
    gives half of its mass to each.

    Args:
        joint: (..., n + 1, n + 1) joint probability of the level at s (rows) and the level at t > s
            (columns).
    """
    stay = joint.diagonal(dim1=-2, dim2=-1).clone()
    stay[..., 1:-1] /= 2
    return quotient(
        torch.minimum(stay[..., :-1], stay[..., 1:]), joint.sum(-2)[..., :-1]
    ).clamp_max(1.0)


def remask_coupling(
    joint: Float64[Tensor, "*n levels levels"],
    level: Int64[Tensor, "B L"],
    lift: Float64[Tensor, "*n m"],
) -> Float64[Tensor, "B L levels"]:
    r"""Return the change of the joint distribution of levels that remasks some positions and keeps
    both marginals.

    It is added to the entries of ``joint`` at the levels at t. Over edge i the mass :math:`\sigma_i
    a_i(t)` of positions that would stay ascends, and as much descends in its place: a circulation.
    For one edge this is ReMDM; for more it is a point of the transportation polytope between a(t)
    and a(s) with Ancestral as its origin (theory section 8).

    Args:
        joint: see ``max_remask_prob``.
        level: (B, L) levels at t.
        lift: (B, n) or (B, L, n) :math:`\sigma_i`, at most ``max_remask_prob``.
    """
    mass = unsqueeze_times(joint.sum(-2)[..., :-1], 1) * unsqueeze_times(lift, 1)
    each = torch.arange(joint.shape[-1], device=level.device)
    at_level = (level[..., None] == each).to(joint)  # one_hot waits for the values on a CPU
    up = at_level[..., :-1] * mass
    down = at_level[..., 1:] * mass
    added = pad(up, (1, 0)) - pad(up, (0, 1)) + pad(down, (0, 1)) - pad(down, (1, 0))
    return added.maximum(-gather_columns(joint, level))  # rounding, where no mass stays
