"""Markov chain of the level of a position, independent of the state within the level."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ddlib.processes.broadcasting import (
    elapsed,
    gather_columns,
    interior,
    quotient,
    unsqueeze_times,
)
from ddlib.schedules import Schedule
from ddlib.utils.precision import Float64Module
from ddlib.utils.validation import require, visible


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


class LevelExponential(Float64Module):
    r"""Transition matrices :math:`\exp(\sigma G)` of a chain of a few levels that never returns to
    a level it left.

    Divided differences of exponentials, the textbook closed form of the hypoexponential
    distribution, cancel when rates nearly agree and when ``sigma`` is small. This is the
    uniformised series of a short step, :math:`e^{-\Lambda h} \sum_k (\Lambda h)^k P^k / k!` with
    :math:`P = I + G / \Lambda`, squared repeatedly: sums and products of non-negative numbers, so
    every entry, however small, has full relative accuracy. The number of squarings is fixed, so no
    GPU synchronisation is needed.

    Args:
        matrix: (n, n) rates, upper triangular, row = from; rows sum to 0.

    Raises:
        ValueError: a matrix that is not upper triangular.
    """

    powers: Tensor

    def __init__(self, matrix: Float[Tensor, "n n"]) -> None:
        super().__init__()
        matrix = matrix.to(torch.float64)
        require(
            torch.equal(matrix, matrix.triu()),
            "matrix has rates below its diagonal, must be upper triangular: use MatrixExponential",
        )
        exits = -matrix.diagonal()
        leaving = exits[exits > 0]
        # The eigenvalues of a triangular matrix are its diagonal, so the slowest exit is the
        # slowest decay. Past this duration every remaining probability is below 1e-299: negligible,
        # and still far from underflow.
        self.horizon = 690.0 / (float(leaving.min()) if len(leaving) else 1.0)
        self.fastest, powers = terms_of(matrix)
        self.squarings = max(0, math.ceil(math.log2(max(self.fastest, 1e-300) * self.horizon)))
        self.powers = powers

    def forward(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m m"]:
        """Compute exp(sigma G) for every ``sigma`` in [0, inf]."""
        # many entries of a batch have the same time, as in sampling; a derivative needs each
        # separately
        if sigma.numel() > 1 and not sigma.requires_grad and visible(sigma):
            distinct, which = sigma.unique(return_inverse=True)
            if len(distinct) < sigma.numel():
                return self(distinct)[which]
        step = sigma.clamp(0, self.horizon) * (self.fastest / 2**self.squarings)
        result = short_step(step, self.powers)
        for _ in range(self.squarings):
            result = normalise_rows(result @ result)
        return result


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
        self.schedule, self.speeds = schedule, torch.as_tensor(speeds, dtype=torch.float64)
        self.generator = LevelExponential(
            torch.diag(self.speeds, 1) - torch.diag(pad(self.speeds, (0, 1)))
        )

    def rates(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n edges"]:
        return self.speeds * self.schedule.rate(t)[..., None]

    def occupancies(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        return self.generator(self.schedule.hazard(t))[..., 0, :]

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
        lift: (..., n) :math:`\sigma_i`, at most ``max_remask_prob``.
    """
    mass = unsqueeze_times(joint.sum(-2)[..., :-1] * lift, 1)
    at_level = one_hot(level, joint.shape[-1]).to(joint)
    up = at_level[..., :-1] * mass
    down = at_level[..., 1:] * mass
    added = pad(up, (1, 0)) - pad(up, (0, 1)) + pad(down, (0, 1)) - pad(down, (1, 0))
    return added.maximum(-gather_columns(joint, level))  # rounding, where no mass stays


def terms_of(matrix: Float64[Tensor, "n n"]) -> tuple[float, Float64[Tensor, "k n n"]]:
    r"""Return the largest exit rate and the terms :math:`P^k / k!` of the uniformised series, (k,
    n, n).
    """
    fastest = float(-matrix.detach().diagonal().min())
    identity = torch.eye(len(matrix), dtype=torch.float64, device=matrix.device)
    jumps = identity + matrix / (fastest or 1.0)
    jumps.diagonal().clamp_(min=0)
    powers = [identity]
    for k in range(1, 18 + min(len(matrix), 16)):
        powers.append(powers[-1] @ jumps / k)
    return fastest, torch.stack(powers)


def short_step(
    step: Float64[Tensor, "*n"], terms: Float64[Tensor, "k m m"], blocks: int = 1
) -> Float64[Tensor, "*n m m"]:
    r"""Sum the uniformised series for durations h of at most 1 in units of the fastest exit.

    With n = k - 1, the terms up to :math:`P^{n \cdot blocks}` are summed by Horner's rule in
    :math:`P^n`:

    .. math:: R_b = \sum_{i < n} \binom{bn + i}{i}^{-1} \frac{h^i P^i}{i!}
        + \binom{bn + n}{n}^{-1} \frac{h^n P^n}{n!} R_{b + 1}, \quad R_{blocks} = I
    """
    exponents = torch.arange(len(terms), device=step.device)
    poisson = torch.exp(-step)[..., None] * step[..., None] ** exponents
    last = blocks - 1
    result = torch.einsum("...k,kij->...ij", poisson / _binomials(last, poisson), terms)
    for block in reversed(range(last)):
        weights = 1 / _binomials(block, poisson)
        later = step[..., None, None] ** exponents[-1] * weights[-1] * (terms[-1] @ result)
        result = later + torch.einsum("...k,kij->...ij", (poisson * weights)[..., :-1], terms[:-1])
    return normalise_rows(result)


def _binomials(block: int, poisson: Float64[Tensor, "*n k"]) -> Float64[Tensor, "n"]:
    r"""Return :math:`\binom{bn + i}{i}` for i = 0..n."""
    n = poisson.shape[-1] - 1
    i = torch.arange(1, n + 1, dtype=poisson.dtype, device=poisson.device)
    return torch.cat([i.new_ones(1), (1 + block * n / i).cumprod(0)])


def normalise_rows(matrix: Float64[Tensor, "*n m m"]) -> Float64[Tensor, "*n m m"]:
    """Scale rows to sum to 1: an error in the sum would double with every squaring."""
    return matrix / matrix.sum(-1, keepdim=True)
