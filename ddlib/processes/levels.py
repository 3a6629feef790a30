"""The level of a token as a chain of its own: which level, not yet which member."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.exact import ExactModule
from ddlib.processes.generator import Generator


class LevelChain(ExactModule):
    r"""A pure-birth chain through the levels 0..n, edge i at speed :math:`\gamma_i` of the clock :math:`\sigma`.

    Occupancies follow the hypoexponential law for distinct, equal and nearly equal speeds alike.

    Args:
        speeds: one positive speed per edge.
    """

    speeds: Tensor

    def __init__(self, speeds: Sequence[float]) -> None:
        super().__init__()
        n = len(speeds)
        self.register_buffer("speeds", torch.tensor(speeds, dtype=torch.float64))
        rates = torch.zeros(n + 1, n + 1, dtype=torch.float64)
        rates[range(n), range(1, n + 1)] = self.speeds
        self.generator = Generator(rates - torch.diag(rates.sum(1)))

    def transition(self, duration: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m m"]:
        """T_ij: probability of level j after ``duration`` on the clock, from level i."""
        return self.generator(duration)

    def occupancies(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        """a_i: probability of each level at clock ``sigma``, from words at 0."""
        return self.generator(sigma)[..., 0, :]

    def weights(self, sigma: Float64[Tensor, "*n"], rate: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        r""":math:`w_i = F_{i-1} / a_i`, flux into a level over its occupancy, per unit of time; 0 for words."""
        occupancies = self.occupancies(sigma)
        inflow = occupancies[..., :-1] * self.speeds * rate[..., None]
        return torch.nn.functional.pad(inflow / occupancies[..., 1:], (1, 0))
