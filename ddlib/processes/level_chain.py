"""Markov chain of the level of a position, independent of the state within the level."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ddlib.processes.broadcasting import beside, into
from ddlib.processes.matrix_exponential import LevelExponential
from ddlib.utils.precision import Float64Module


class LevelChain(Float64Module):
    r"""Pure-birth chain through the levels 0..n, with rate :math:`\gamma_i` of edge i per unit of :math:`\sigma`.

    Here :math:`\sigma = -\log \alpha` is the integrated rate of the schedule. Occupancies follow the hypoexponential
    distribution, accurately for distinct, equal and nearly equal speeds.

    Args:
        speeds: one positive speed per edge; a tensor has exact gradients, near equal speeds too.
    """

    speeds: Tensor

    def __init__(self, speeds: Sequence[float] | Float64[Tensor, "n"]) -> None:
        super().__init__()
        self.speeds = torch.as_tensor(speeds, dtype=torch.float64)
        self.generator = LevelExponential(self.rates())

    def rates(self) -> Float64[Tensor, "m m"]:
        """Return the rates between levels per unit of sigma; rows sum to 0."""
        return torch.diag(self.speeds, 1) - torch.diag(pad(self.speeds, (0, 1)))

    def transition(self, duration: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m m"]:
        """Return T_ij, the probability of level j after a ``duration`` in units of sigma, from level i."""
        return self.generator(duration)

    def occupancies(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        """Return a_i, the probability of each level at ``sigma``, from tokens at 0."""
        return self.generator(sigma)[..., 0, :]

    def weights(self, sigma: Float64[Tensor, "*n"], rate: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        r"""Return :math:`w_i = F_{i-1} / a_i`, flux into a level over its occupancy, per unit of time; 0 for tokens."""
        return pad(self.inflow(sigma, rate)[..., 1:] / self.occupancies(sigma)[..., 1:], (1, 0))

    def inflow(self, sigma: Float64[Tensor, "*n"], rate: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        """Return F_{i-1}, the flux into each level, per unit of time; 0 for tokens."""
        return pad(self.occupancies(sigma)[..., :-1] * self.speeds * rate[..., None], (1, 0))


def max_remask_prob(joint: Float64[Tensor, "*n levels levels"]) -> Float64[Tensor, "*n m"]:
    """Return the largest remask probability of each edge in ``remask_coupling``, (B, n), or (B, L, n).

    It moves all the mass that would stay on one side of the edge. A level with edges on both sides gives half of its
    mass to each.

    Args:
        joint: (..., n + 1, n + 1) joint probability of the level at s (rows) and the level at t > s (columns).
    """
    stay = joint.diagonal(dim1=-2, dim2=-1).clone()
    stay[..., 1:-1] /= 2
    most, mass = torch.minimum(stay[..., :-1], stay[..., 1:]), joint.sum(-2)[..., :-1]
    return torch.where(mass > 0, most / torch.where(mass > 0, mass, 1.0), 0.0).clamp_max(1.0)


def remask_coupling(
    joint: Float64[Tensor, "*n levels levels"], level: Int64[Tensor, "B L"], lift: Float64[Tensor, "*n m"]
) -> Float64[Tensor, "B L levels"]:
    r"""Return the change of the joint distribution of levels that remasks some positions and keeps both marginals.

    It is added to the entries of ``joint`` at the levels at t. Over edge i the mass :math:`\sigma_i a_i(t)` of
    positions that would stay ascends, and as much descends in its place: a circulation. For one edge this is ReMDM; for
    more it is a point of the transportation polytope between a(t) and a(s) with Ancestral as its origin (theory
    section 8).

    Args:
        joint: see ``max_remask_prob``.
        level: (B, L) levels at t.
        lift: (..., n) :math:`\sigma_i`, at most ``max_remask_prob``.
    """
    mass = beside(joint.sum(-2)[..., :-1] * lift, 1)
    at_level = one_hot(level, joint.shape[-1]).to(joint)
    up, down = at_level[..., :-1] * mass, at_level[..., 1:] * mass
    added = pad(up, (1, 0)) - pad(up, (0, 1)) + pad(down, (0, 1)) - pad(down, (1, 0))
    return added.maximum(-into(joint, level))  # rounding, where no mass stays
