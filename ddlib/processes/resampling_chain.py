"""The level of a token together with whether it was redrawn: a chain of its own, that no word has a say in."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import pad

from ddlib.hierarchies import Hierarchy
from ddlib.processes.matrix_exponential import LevelExponential
from ddlib.utils.precision import Float64Module
from ddlib.utils.validation import check_number, check_shape, require


class LevelProbs(NamedTuple):
    """Of each level, what is on its own way up and what was redrawn; the mask, where that means nothing, is kept."""

    kept: Tensor
    redrawn: Tensor

    @property
    def levels(self) -> Tensor:
        """Of each level, redrawn or not."""
        return self.kept + self.redrawn

    @property
    def given_level(self) -> "LevelProbs":
        """The shares of a level that is reached; 0 where it is not."""
        levels = torch.where(self.levels > 0, self.levels, 1.0)
        return LevelProbs(self.kept / levels, self.redrawn / levels)


class ResamplingChain(Float64Module):
    r"""Levels 0..n on the clock: edge i at speed :math:`s_i`, redrawn in level i < n at rate :math:`\lambda_i`.

    Args:
        speeds: (n,) of the edges, positive.
        rates: (n,) of the redraws, lowest level first, at least 0.
    """

    speeds: Tensor
    rates: Tensor

    def __init__(self, speeds: Float64[Tensor, "n"], rates: Float64[Tensor, "n"]) -> None:
        super().__init__()
        self.speeds, self.rates = speeds, rates
        n = len(speeds)
        matrix = torch.zeros(2 * n + 1, 2 * n + 1, dtype=torch.float64, device=speeds.device)
        above = torch.arange(1, n + 1)
        matrix[torch.arange(n), torch.where(above < n, above, 2 * n)] = speeds
        matrix[torch.arange(n) + n, above + n] = speeds
        matrix[torch.arange(n), torch.arange(n) + n] = rates
        self.generator = LevelExponential(matrix - torch.diag(matrix.sum(1)))

    def transition(self, duration: Float64[Tensor, "*n"]) -> LevelProbs:
        """From each level (rows) to each after ``duration`` on the clock, (*n, levels, levels): not redrawn, redrawn.

        A token that was redrawn before is redrawn in any level that it comes to: this counts from the start of the
        duration.
        """
        n = len(self.speeds)
        law = self.generator(duration)
        mask = torch.zeros_like(law[..., 0, :n])
        on_its_way = torch.cat([law[..., :n, :n], law[..., :n, -1:]], -1)
        still = pad(mask, (0, 1), value=1.0)[..., None, :]
        return LevelProbs(torch.cat([on_its_way, still], -2), pad(law[..., :n, n : 2 * n], (0, 1, 0, 1)))

    def occupancies(self, sigma: Float64[Tensor, "*n"]) -> LevelProbs:
        """The probability of each level at clock ``sigma``, from words at 0, (*n, levels)."""
        return LevelProbs(*(part[..., 0, :] for part in self.transition(sigma)))

    def inflow(self, shares: LevelProbs) -> LevelProbs:
        """The flux into each level and, by redraws, within it, per unit of the clock, from ``occupancies``."""
        again = pad(shares.levels[..., :-1] * self.rates, (0, 1))
        up, anew = (pad(part[..., :-1] * self.speeds, (1, 0)) for part in shares)
        to_mask = pad(anew[..., -1:], (len(self.speeds), 0))
        return LevelProbs(up + to_mask, anew - to_mask + again)

    def levels(self) -> Float64[Tensor, "m m"]:
        """The rates from each level to each other on the clock; what is redrawn leaves its level and comes back to it.

        So rows sum to minus the rate of redraws.
        """
        return torch.diag(self.speeds, 1) - torch.diag(pad(self.speeds + self.rates, (0, 1)))


def ratio_of(share: float) -> float:
    r"""The ratio :math:`\rho = \lambda / s` at which at most ``share`` of all tokens ever are redrawn and still there.

    Of tokens that leave a level at rate s and are redrawn in it at rate :math:`\lambda`,
    :math:`e^{-s\sigma} (1 - e^{-\lambda\sigma})` are there and redrawn at clock :math:`\sigma`, at most

    .. math:: \frac{\rho}{1 + \rho} (1 + \rho)^{-1/\rho}

    which grows with :math:`\rho` from 0 to 1: it is solved by bisection.

    Args:
        share: in [0, 1).
    """
    if share == 0:
        return 0.0
    low, high = math.log(share), math.log(1e12)
    for _ in range(200):
        middle = (low + high) / 2
        ratio = math.exp(middle)
        most = middle - math.log1p(ratio) * (1 + 1 / ratio)
        low, high = (middle, high) if most < math.log(share) else (low, middle)
    return math.exp(high)


_SHARE = "in [0, 1), at most 1 - 1e-6"


def checked_shares(p_uniform: Any, depth: int) -> tuple[float, ...]:
    """One share for each level below the mask."""
    if isinstance(p_uniform, Tensor):
        p_uniform = p_uniform.tolist()
    given = list(p_uniform) if isinstance(p_uniform, Iterable) and not isinstance(p_uniform, str) else None
    if given is None:
        words = check_number("p_uniform", p_uniform, 0, 1 - 1e-6, _SHARE)
        return (words, *[0.0] * (depth - 1))
    require(
        len(given) == depth,
        f"p_uniform has {len(given)} entries, must be one number, for words, or have {depth}: one per level below the "
        "mask",
    )
    return tuple(check_number(f"p_uniform[{i}]", share, 0, 1 - 1e-6, _SHARE) for i, share in enumerate(given))


def token_frequencies(frequency: Any, hierarchy: Hierarchy) -> Float64[Tensor, "V"]:
    """pi of the words."""
    size, device = hierarchy.vocab_size, hierarchy.maps[0].parents.device
    if frequency is None:
        return torch.full((size,), 1 / size, dtype=torch.float64, device=device)
    try:
        # torch.as_tensor would make a list of floats float32
        seen = frequency if isinstance(frequency, Tensor) else torch.as_tensor(frequency, dtype=torch.float64)
        seen = seen.to(device, torch.float64)
    except (TypeError, RuntimeError, ValueError) as error:
        raise TypeError(f"frequency is {frequency!r}, must be one number per word: {error}") from None
    check_shape("frequency", seen, (size,), f"(V,) = ({size},): one number per word")
    require(bool(seen.isfinite().all()), "frequency holds NaN or infinity, must be finite")
    require(bool((seen >= 0).all()), f"frequency holds {float(seen.min()):g}, must be at least 0")
    require(bool(seen.sum() > 0), "frequency is 0 everywhere, must be above 0 at some word")
    return seen / seen.sum()
