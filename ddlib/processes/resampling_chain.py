"""Markov chain of the level of a position and a flag for resampling; independent of the token."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import pad

from ddlib.hierarchies import Hierarchy
from ddlib.processes.level_transitions import LevelExponential
from ddlib.utils.precision import Float64Module
from ddlib.utils.validation import check_number, check_shape, require


class LevelProbs(NamedTuple):
    """Probabilities of each level, kept and resampled.

    The mask, where both are the same, counts as kept.
    """

    kept: Tensor
    """Probability of the level without resampling."""
    redrawn: Tensor
    """Probability of the level after resampling."""

    @property
    def levels(self) -> Tensor:
        """Probability of each level, kept or resampled."""
        return self.kept + self.redrawn

    @property
    def given_level(self) -> "LevelProbs":
        """Probabilities given the level; 0 where the level is not reached."""
        levels = torch.where(self.levels > 0, self.levels, 1.0)
        return LevelProbs(self.kept / levels, self.redrawn / levels)


class ResamplingChain(Float64Module):
    r"""Chain of levels 0..n: edge i at speed :math:`s_i`, resampling in level i < n at rate
    :math:`\lambda_i`.

    Rates and durations are in units of :math:`\sigma = -\log \alpha`.

    Args:
        speeds: (n,) positive speeds of the edges.
        rates: (n,) rates of resampling, lowest level first, at least 0.
    """

    speeds: Tensor
    rates: Tensor

    def __init__(self, speeds: Float64[Tensor, "n"], rates: Float64[Tensor, "n"]) -> None:
        super().__init__()
        self.speeds = speeds
        self.rates = rates
        n = len(speeds)
        matrix = torch.zeros(2 * n + 1, 2 * n + 1, dtype=torch.float64, device=speeds.device)
        above = torch.arange(1, n + 1)
        matrix[torch.arange(n), torch.where(above < n, above, 2 * n)] = speeds
        matrix[torch.arange(n) + n, above + n] = speeds
        matrix[torch.arange(n), torch.arange(n) + n] = rates
        self.generator = LevelExponential(matrix - torch.diag(matrix.sum(1)))

    def transition(self, duration: Float64[Tensor, "*n"]) -> LevelProbs:
        """Return probabilities from each level (rows) to each after ``duration``, (*n, levels,
        levels), by flag.

        The flag counts from the start of the duration: kept means that nothing was resampled within
        it.
        """
        n = len(self.speeds)
        probs = self.generator(duration)
        zeros = torch.zeros_like(probs[..., 0, :n])
        kept = torch.cat([probs[..., :n, :n], probs[..., :n, -1:]], -1)
        mask_stays = pad(zeros, (0, 1), value=1.0)[..., None, :]
        return LevelProbs(
            torch.cat([kept, mask_stays], -2), pad(probs[..., :n, n : 2 * n], (0, 1, 0, 1))
        )

    def occupancies(self, sigma: Float64[Tensor, "*n"]) -> LevelProbs:
        """Return the probability of each level and flag at ``sigma``, from tokens at 0, (*n,
        levels).
        """
        return LevelProbs(*(part[..., 0, :] for part in self.transition(sigma)))

    def inflow(self, shares: LevelProbs) -> LevelProbs:
        """Return the flux into each level and, by resampling, within it, per unit of sigma, from
        ``occupancies``.
        """
        within = pad(shares.levels[..., :-1] * self.rates, (0, 1))
        up, resampled = (pad(part[..., :-1] * self.speeds, (1, 0)) for part in shares)
        to_mask = pad(resampled[..., -1:], (len(self.speeds), 0))
        return LevelProbs(up + to_mask, resampled - to_mask + within)

    def levels(self) -> Float64[Tensor, "m m"]:
        """Return the rates between levels per unit of sigma; the diagonal includes resampling.

        So rows sum to minus the rate of resampling.
        """
        return torch.diag(self.speeds, 1) - torch.diag(pad(self.speeds + self.rates, (0, 1)))


def ratio_of(share: float) -> float:
    r"""Solve for the ratio :math:`\rho = \lambda / s` at which the largest share of resampled
    tokens is ``share``.

    Positions that leave a level at rate s and are resampled in it at rate :math:`\lambda` are in
    the level and resampled at :math:`\sigma` with probability :math:`e^{-s\sigma} (1 -
    e^{-\lambda\sigma})`. Its maximum is

    .. math:: \frac{\rho}{1 + \rho} (1 + \rho)^{-1/\rho}

    which grows with :math:`\rho` from 0 to 1; the equation is solved by bisection.

    Args:
        share: in [0, 1).
    """
    if share == 0:
        return 0.0
    low = math.log(share)
    high = math.log(1e12)
    for _ in range(200):
        middle = (low + high) / 2
        ratio = math.exp(middle)
        most = middle - math.log1p(ratio) * (1 + 1 / ratio)
        low, high = (middle, high) if most < math.log(share) else (low, middle)
    return math.exp(high)


_SHARE = "in [0, 1), at most 1 - 1e-6"


def check_shares(p_uniform: Any, depth: int) -> tuple[float, ...]:
    """Return one share for each level below the mask."""
    if isinstance(p_uniform, Tensor):
        p_uniform = p_uniform.tolist()
    shares = (
        list(p_uniform)
        if isinstance(p_uniform, Iterable) and not isinstance(p_uniform, str)
        else None
    )
    if shares is None:
        tokens = check_number("p_uniform", p_uniform, 0, 1 - 1e-6, _SHARE)
        return (tokens, *[0.0] * (depth - 1))
    require(
        len(shares) == depth,
        f"p_uniform has {len(shares)} entries, must be one number, for tokens, or have {depth}: "
        "one per level below the mask",
    )
    return tuple(
        check_number(f"p_uniform[{i}]", share, 0, 1 - 1e-6, _SHARE)
        for i, share in enumerate(shares)
    )


def token_frequencies(frequency: Any, hierarchy: Hierarchy) -> Float64[Tensor, "V"]:
    """Return the distribution pi over tokens, from which resampling draws."""
    size = hierarchy.vocab_size
    device = hierarchy.maps[0].parents.device
    if frequency is None:
        return torch.full((size,), 1 / size, dtype=torch.float64, device=device)
    try:
        # torch.as_tensor would make a list of floats float32
        counts = (
            frequency
            if isinstance(frequency, Tensor)
            else torch.as_tensor(frequency, dtype=torch.float64)
        )
        counts = counts.to(device, torch.float64)
    except (TypeError, RuntimeError, ValueError) as error:
        raise TypeError(
            f"frequency is {frequency!r}, must be one number per token: {error}"
        ) from None
    check_shape("frequency", counts, (size,), f"(V,) = ({size},): one number per token")
    require(bool(counts.isfinite().all()), "frequency holds NaN or infinity, must be finite")
    require(
        bool((counts >= 0).all()), f"frequency holds {float(counts.min()):g}, must be at least 0"
    )
    require(
        bool(counts.sum() > 0), "frequency is 0 everywhere, must be above 0 for at least one token"
    )
    return counts / counts.sum()
