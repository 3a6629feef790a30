"""Dynamic weighting of GIDD."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess, interior, unsqueeze_times
from ddlib.typing import Interpolating, Times, Tokens
from ddlib.utils.validation import check_flag, check_number
from ddlib.weightings.base import Weighting


class Dynamic(Weighting):
    r"""GIDD's dynamic weights (von Rütte et al., 2503.04482).

    Constant for noise, time-dependent for kept tokens.

    .. math:: w = \frac{h}{2} \Bigl( 1 + \delta_{z,m}
        + \bigl( \tfrac{B}{N} e^{-\lambda_t / 2} - 1 \bigr)
        \delta_{z,x} \Bigr), \qquad \lambda_t = \log \frac{\alpha_t}{1 - \alpha_t},

    at most h: masks have weight h, other tokens h/2, and the clean token nearly 0, as in the bound.
    With an exponent :math:`\gamma` of the mixing schedule the authors' code uses :math:`e^{-\gamma
    \lambda_t / 2}`; for the paper's exponent 1 both agree. Weights that are 0 in the bound stay 0.

    Since release 1.1 the authors' code uses :math:`e^{\gamma \sigma(-t) / 2}` instead, which hardly
    depends on t: with 50,000 tokens and 10 % uniform noise it is 1.2e-5 instead of 1e-6 to 1e-4.
    Their published checkpoints are older.

    Args:
        high: h, twice the paper's :math:`w_{max}`.
        released: whether the weight of the clean token follows the authors' code since release 1.1.

    Raises:
        TypeError, ValueError: high not in (0, 1e6].
    """

    def __init__(self, high: float = 2.0, released: bool = False) -> None:
        self.high = check_number("high", high, 1e-6, 1e6, "in [1e-6, 1e6]")
        self.released = check_flag("released", released)

    @property
    def about(self) -> str:
        return f"dynamic weights up to {self.high:g}" + ", as released" * self.released

    def check(self, process: ForwardProcess) -> None:
        self._mixing(process)

    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        mixing = self._mixing(process)
        t = unsqueeze_times(t)
        keep = mixing.mixture(interior(t)).keep
        half = mixing.gamma / 2
        odds = (
            (half * torch.sigmoid(-t.to(keep))).exp()
            if self.released
            else ((1 - keep) / keep) ** half
        )
        kept = (mixing.scale * odds).clamp_max(2.0)
        share = torch.where(z == x, kept, torch.where(z < process.vocab_size, 1.0, 2.0))
        return torch.where(weight > 0, self.high / 2 * share, 0.0)

    def _mixing(self, process: ForwardProcess) -> Interpolating:
        if not isinstance(process, Interpolating):
            raise TypeError(
                f"{self!r} requires the mixing schedule of GIDD, {type(process).__name__} has none "
                "(no scale, gamma "
                f"and mixture): use Clip({self.high:g}) or Constant(), which support every process"
            )
        return process

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(1.0, released=True)]
