"""Transition matrices between a few levels at constant rates, as functions of the duration."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import pad

from ddlib.utils.precision import Float64Module
from ddlib.utils.validation import require, visible

_LONGEST = 690.0
"""Longest duration, in units of the mean time of the slowest exit.

Past it every remaining probability is below 1e-299: negligible, and still far from underflow.
"""

_TERMS = 20
"""Largest power in the series of ``TwoEdges``; the next is below 1e-18 of the sum."""


class LevelTransitions(Float64Module):
    """Transition matrices of a chain through levels at constant rates.

    A subclass implements ``forward``, and overrides the other methods where a part of the matrix
    takes fewer operations.
    """

    @abstractmethod
    def forward(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m m"]:
        """Compute the transition matrix, row = from, for every ``sigma`` in [0, inf]."""

    def from_tokens(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        """Compute the probability of each level from the lowest one on."""
        matrices: Tensor = self(sigma)
        return matrices[..., 0, :]

    def at_most(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n edges"]:
        """Compute the probability of this level or a lower one, from the lowest one on.

        For all levels but the last.
        """
        return self.from_tokens(sigma)[..., :-1].cumsum(-1)


class OneEdge(LevelTransitions):
    r"""Transition matrices of two levels, :math:`e^{-r \sigma}` stays in the lower one.

    Args:
        rate: r > 0.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.horizon = _LONGEST / rate

    def forward(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m m"]:
        first = self.from_tokens(sigma)
        last = torch.stack([torch.zeros_like(sigma), torch.ones_like(sigma)], -1)
        return torch.stack([first, last], -2)

    def from_tokens(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        log_survival = self._log_survival(sigma)
        return torch.stack([log_survival.exp(), -log_survival.expm1()], -1)

    def at_most(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n edges"]:
        return self._log_survival(sigma).exp()[..., None]

    def _log_survival(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Return minus the expected number of jumps."""
        return sigma.clamp(0, self.horizon) * -self.rate


class TwoEdges(LevelTransitions):
    r"""Transition matrices of three levels, in closed form.

    With the lower rate :math:`\lambda`, the slow and the fast rate r and f of the two edges and
    :math:`d = f - r`, let

    .. math:: q = e^{-r \sigma} \int_0^\sigma e^{-d u} du
        = e^{-r \sigma} \frac{1 - e^{-d \sigma}}{d}

    Then the probabilities from the lowest level on are (hypoexponential distribution)

    .. math:: a_0 = e^{-\lambda \sigma}, \quad a_1 = \lambda q, \quad
        a_2 = 1 - e^{-r \sigma} - r q

    For :math:`f \sigma \ge 1` the difference loses at most two bits. Below, it is the uniformised
    series

    .. math:: a_2 = e^{-f \sigma} \sum_{k \ge 2} \frac{(f \sigma)^k}{k!}
        \bigl(1 - (1 - r / f)^{k - 1}\bigr),

    a sum of positive numbers. So every entry has full relative accuracy, for equal and nearly equal
    rates too.

    Args:
        lower: rate of the lower edge, > 0.
        upper: rate of the upper edge, > 0.
    """

    coefficients: Tensor
    """Coefficient of each power of the series, from the second on."""

    def __init__(self, lower: float, upper: float) -> None:
        super().__init__()
        self.lower = lower
        self.upper = upper
        self.slow, self.fast = sorted((lower, upper))
        self.horizon = _LONGEST / self.slow
        jumps = torch.arange(1, _TERMS, dtype=torch.float64)
        misses = torch.tensor(-self.slow / self.fast, dtype=torch.float64).log1p() * jumps
        self.coefficients = -misses.expm1() / (jumps + 1).cumprod(0)

    def forward(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m m"]:
        log_survival = sigma.clamp(0, self.horizon) * -self.upper
        zero = torch.zeros_like(log_survival)
        second = torch.stack([zero, log_survival.exp(), -log_survival.expm1()], -1)
        last = torch.stack([zero, zero, torch.ones_like(log_survival)], -1)
        return torch.stack([self.from_tokens(sigma), second, last], -2)

    def from_tokens(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n m"]:
        sigma = sigma.clamp(0, self.horizon)
        stays, q = self._lower(sigma)
        difference = -torch.add(torch.expm1(sigma * -self.slow), q, alpha=self.slow)
        jumps = sigma * self.fast
        # where it is not taken its value must be finite, as its gradient is multiplied by 0
        powers = jumps.clamp_max(1.0)[..., None].expand(*sigma.shape, _TERMS - 1).cumprod(-1)
        series = (powers * self.coefficients).sum(-1) * jumps.clamp_max(1.0) * torch.exp(-jumps)
        last = torch.where(jumps < 1, series, difference)
        return torch.stack([stays, self.lower * q, last], -1)

    def at_most(self, sigma: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n edges"]:
        stays, q = self._lower(sigma.clamp(0, self.horizon))
        return torch.stack([stays, torch.add(stays, q, alpha=self.lower)], -1)

    def _lower(
        self, sigma: Float64[Tensor, "*n"]
    ) -> tuple[Float64[Tensor, "*n"], Float64[Tensor, "*n"]]:
        """Return :math:`a_0` and q."""
        d = self.fast - self.slow
        moves = torch.expm1(sigma * -d) / -d if d else sigma
        slow = torch.exp(sigma * -self.slow)
        stays = slow if self.lower == self.slow else torch.exp(sigma * -self.fast)
        return stays, slow * moves


class LevelExponential(LevelTransitions):
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
        # the eigenvalues of a triangular matrix are its diagonal, so the slowest exit is the
        # slowest decay
        self.horizon = _LONGEST / (float(leaving.min()) if len(leaving) else 1.0)
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


def transitions_of(rates: Sequence[float]) -> LevelTransitions:
    """Return the transitions of a chain with these positive rates of its edges, lowest first.

    In closed form for one and two edges.
    """
    closed_forms = {1: OneEdge, 2: TwoEdges}
    if len(rates) in closed_forms:
        return closed_forms[len(rates)](*rates)
    edges = torch.tensor(rates, dtype=torch.float64)
    return LevelExponential(torch.diag(edges, 1) - torch.diag(pad(edges, (0, 1))))
