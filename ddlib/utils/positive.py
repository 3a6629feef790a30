"""Positive numbers whose ratios are learned: speeds of the edges of a tree, powers of tokens."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ddlib.utils.precision import Float64Module
from ddlib.utils.validation import check_number

LOW, HIGH, RULE = 1e-3, 1e3, "in [0.001, 1000]"
"""Between these every such number lies, whether it is given or learned."""

_SHOWN, _SHARP = 6, 16.0


def check_positive(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """The values as floats, each checked to lie within the limits; errors call value i ``name[i]``."""
    return tuple(check_number(f"{name}[{i}]", value, LOW, HIGH, RULE) for i, value in enumerate(values))


class PositiveParameter(Float64Module):
    r"""Positive numbers :math:`\exp(\lambda_i - m(\lambda) + c)` with learned :math:`\lambda`: their ratios move.

    :math:`m(\lambda) = -\frac{1}{16} \log \sum_i e^{-16 \lambda_i}` is a smooth minimum, so the slowest stays about
    where it was, and c is its start. A common factor is another schedule, of which the bound of a network that is not
    told the time knows nothing; but a slow edge is left late, where the digits of a time end, and what is still there
    then is missing in the bound.

    Args:
        name: what errors call them.
        values: where they start, each in [0.001, 1000].

    Raises:
        TypeError, ValueError: a value that is no number within the limits.
    """

    log: Tensor
    """(n,) the parameter, float64 whatever the module is cast to."""
    slowest: Tensor

    def __init__(self, name: str, values: Sequence[float]) -> None:
        super().__init__()
        start = torch.tensor(check_positive(name, values), dtype=torch.float64).log()
        self.name = name
        self.log = nn.Parameter(start)
        self.slowest = _smooth_min(start)

    def forward(self) -> Float64[Tensor, "n"]:
        """The numbers as they are now; gradients go to ``log``.

        Raises:
            ValueError: one was learned to 0 or infinity, or is NaN; says which.
        """
        values = self._now()
        if not values.is_meta:
            # beside an infinite parameter all values are NaN
            sound = torch.where(self.log.isfinite().all(), values, self.log.exp())
            self._check(sound.detach().tolist(), self.log.detach().isfinite().tolist())
        return values

    def _now(self) -> Tensor:
        return (self.log - _smooth_min(self.log) + self.slowest).exp()

    def __repr__(self) -> str:
        """What they are now, a few of many."""
        now = self._now().detach()
        if now.is_meta:
            return "learned"
        shown = [f"{value:.4g}" for value in now[:_SHOWN].tolist()] + ["..."] * (len(now) > _SHOWN)
        return f"learned({', '.join(shown)})"

    def _check(self, values: list[float], sound: list[bool]) -> None:
        """Asks the one that is furthest off."""
        far = [abs(math.log(value)) if 0 < value < math.inf else math.inf for value in values]
        worst = max(range(len(values)), key=lambda i: (not sound[i], far[i]))
        value = values[worst]
        # a start at a limit is within it but for rounding
        if not LOW * (1 - 1e-9) <= value <= HIGH * (1 + 1e-9):
            raise ValueError(
                f"{self.name}[{worst}] was learned to {value:g}, must stay {RULE}: "
                "the bound asks for 0 or infinity, or the steps of its learning are too long"
            )


def _smooth_min(log: Tensor) -> Tensor:
    return -torch.logsumexp(-_SHARP * log, 0) / _SHARP
