"""The level of a token as a chain of its own: which level, not yet which member."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ddlib.processes.broadcasting import beside, into
from ddlib.processes.matrix_exponential import LevelExponential
from ddlib.utils.precision import Float64Module


class LevelChain(Float64Module):
    r"""A pure-birth chain through the levels 0..n, edge i at speed :math:`\gamma_i` of the clock :math:`\sigma`.

    Occupancies follow the hypoexponential law for distinct, equal and nearly equal speeds alike.

    Args:
        speeds: one positive speed per edge; gradients by a tensor of them are those of the law, near equal speeds too.
    """

    speeds: Tensor

    def __init__(self, speeds: Sequence[float] | Float64[Tensor, "n"]) -> None:
        super().__init__()
        self.speeds = torch.as_tensor(speeds, dtype=torch.float64)
        self.generator = LevelExponential(self.rates())

    def rates(self) -> Float64[Tensor, "m m"]:
        """The rate from each level to each other on the clock, rows sum to 0."""
        return torch.diag(self.speeds, 1) - torch.diag(pad(self.speeds, (0, 1)))

    def transition(self, duration: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m m"]:
        """T_ij: probability of level j after ``duration`` on the clock, from level i."""
        return self.generator(duration)

    def occupancies(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        """a_i: probability of each level at clock ``sigma``, from words at 0."""
        return self.generator(sigma)[..., 0, :]

    def weights(self, sigma: Float64[Tensor, "*n"], rate: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        r""":math:`w_i = F_{i-1} / a_i`, flux into a level over its occupancy, per unit of time; 0 for words."""
        return pad(self.inflow(sigma, rate)[..., 1:] / self.occupancies(sigma)[..., 1:], (1, 0))

    def inflow(self, sigma: Float64[Tensor, "*n"], rate: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        """F_{i-1}, the flux into each level, per unit of time; 0 for words."""
        return pad(self.occupancies(sigma)[..., :-1] * self.speeds * rate[..., None], (1, 0))


def max_remask_prob(joint: Float64[Tensor, "*n levels levels"]) -> Float64[Tensor, "*n m"]:
    """The largest chance to climb each edge that ``remask_coupling`` can give, (B, n), or (B, L, n).

    It takes all that would stay on one side of the edge; levels with an edge on both sides give half to each.

    Args:
        joint: the probability of each level at s (rows) together with each at t > s.
    """
    room = joint.diagonal(dim1=-2, dim2=-1).clone()
    room[..., 1:-1] /= 2
    most, mass = torch.minimum(room[..., :-1], room[..., 1:]), joint.sum(-2)[..., :-1]
    return torch.where(mass > 0, most / torch.where(mass > 0, mass, 1.0), 0.0).clamp_max(1.0)


def remask_coupling(
    joint: Float64[Tensor, "*n levels levels"], level: Int64[Tensor, "B L"], lift: Float64[Tensor, "*n m"]
) -> Float64[Tensor, "B L levels"]:
    r"""What to add to the rows of ``joint`` at the levels at t, so that some climb and both laws stay what they are.

    Over edge i the mass :math:`\sigma_i a_i(t)` of those that would stay goes up, and as much comes down in its
    place: a circulation. For one edge that is ReMDM, for more it is a point of the transportation polytope between a(t)
    and a(s) with Ancestral as its origin (theory section 8).

    Args:
        joint: see ``max_remask_prob``.
        level: at t.
        lift: :math:`\sigma_i`, at most ``max_remask_prob``.
    """
    mass = beside(joint.sum(-2)[..., :-1] * lift, 1)
    here = one_hot(level, joint.shape[-1]).to(joint)
    up, down = here[..., :-1] * mass, here[..., 1:] * mass
    added = pad(up, (1, 0)) - pad(up, (0, 1)) + pad(down, (0, 1)) - pad(down, (1, 0))
    return added.maximum(-into(joint, level))  # rounding, where nobody stays
