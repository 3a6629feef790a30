"""Exponentials of a rate matrix, accurate in every entry."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.checks import visible
from ddlib.exact import ExactModule


class Generator(ExactModule):
    r"""Transition probabilities :math:`\exp(\sigma G)` of a chain with the constant rate matrix ``G``.

    Divided differences of exponentials, the textbook closed form of the hypoexponential law, cancel when speeds nearly
    agree and when ``sigma`` is small. Here everything is a sum or product of non-negative numbers, so every entry,
    however small, has full relative accuracy: the uniformised series of a short step
    :math:`e^{-\Lambda h} \sum_k (\Lambda h)^k P^k / k!` with :math:`P = I + G / \Lambda`, squared repeatedly. The
    number of operations does not depend on ``sigma``, so no value is looked at.

    Derivatives by the rates pass through the same operations. ``Lambda``, the rate of the fastest state, is none: the
    exponential does not depend on it.

    Args:
        matrix: (n, n) rates, rows sum to 0, row = from.
    """

    powers: Tensor

    def __init__(self, matrix: Float[Tensor, "n n"]) -> None:
        super().__init__()
        matrix = matrix.to(torch.float64)
        exits = -matrix.detach().diagonal()
        self.fastest = float(exits.max())
        leaving = exits[exits > 0]
        slowest = float(leaving.min()) if len(leaving) else 1.0
        # past this duration every survivor is below 1e-299: as good as none, and still far from underflow
        self.horizon = 690.0 / slowest
        self.squarings = max(0, math.ceil(math.log2(max(self.fastest, 1e-300) * self.horizon)))
        still = torch.eye(len(matrix), dtype=torch.float64, device=matrix.device)
        jumps = still + matrix / (self.fastest or 1.0)
        jumps.diagonal().clamp_(min=0)
        powers = [still]
        for k in range(1, 18 + min(len(matrix), 16)):
            powers.append(powers[-1] @ jumps / k)
        self.register_buffer("powers", torch.stack(powers))

    def forward(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m m"]:
        """exp(sigma G) for every ``sigma`` in [0, inf]."""
        # a batch shares its times, as in sampling, or a block of each text; a derivative is that of each alone
        if sigma.numel() > 1 and not sigma.requires_grad and visible(sigma):
            own, which = sigma.unique(return_inverse=True)
            if len(own) < sigma.numel():
                return self(own)[which]
        step = sigma.clamp(0, self.horizon) * (self.fastest / 2**self.squarings)
        exponents = torch.arange(len(self.powers), device=sigma.device)
        poisson = torch.exp(-step)[..., None] * step[..., None] ** exponents
        result = _laws(torch.einsum("...k,kij->...ij", poisson, self.powers))
        for _ in range(self.squarings):
            result = _laws(result @ result)
        return result


def _laws(matrix: Tensor) -> Tensor:
    """Rows that sum to 1 again: an error in the sum would double with every squaring."""
    return matrix / matrix.sum(-1, keepdim=True)
