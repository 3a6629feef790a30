"""Positive numbers whose ratios are learned: speeds of the edges of a tree, powers of words."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ddlib.checks import check_number
from ddlib.exact import ExactModule

LOW, HIGH, RULE = 1e-3, 1e3, "in [0.001, 1000]"
"""Between these every such number lies, whether it is given or learned."""

_SHOWN = 6


def check_positive(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """The values as floats, each checked to lie within the limits; errors call value i ``name[i]``."""
    return tuple(check_number(f"{name}[{i}]", value, LOW, HIGH, RULE) for i, value in enumerate(values))


class Learned(ExactModule):
    r"""Positive numbers :math:`\exp(\lambda_i - \bar\lambda + c)` with learned :math:`\lambda`: their ratios move.

    Their geometric mean :math:`e^c` stays what it was: a common factor is another clock, of which the bound of a
    network that is not told the time knows nothing. So the mean cannot wander off with the noise of the gradients.

    Args:
        name: what errors call them.
        values: where they start, each in [0.001, 1000].

    Raises:
        TypeError, ValueError: a value that is no number within the limits.
    """

    log: Tensor
    """(n,) the parameter, float64 whatever the module is cast to."""

    def __init__(self, name: str, values: Sequence[float]) -> None:
        super().__init__()
        start = torch.tensor(check_positive(name, values), dtype=torch.float64).log()
        self.name = name
        self.log = nn.Parameter(start)
        self.register_buffer("centre", start.mean())

    centre: Tensor

    def forward(self) -> Float64[Tensor, "n"]:
        """The numbers as they are now; gradients go to ``log``.

        Raises:
            ValueError: one was learned to 0 or infinity, or is NaN; says which.
        """
        values = (self.log - self.log.mean() + self.centre).exp()
        if not values.is_meta:
            self._check(values.detach().tolist(), self.log.detach().isfinite().tolist())
        return values

    def __repr__(self) -> str:
        """What they are now, a few of many."""
        now = (self.log - self.log.mean() + self.centre).exp().detach()
        if now.is_meta:
            return "learned"
        shown = [f"{value:.4g}" for value in now[:_SHOWN].tolist()] + ["..."] * (len(now) > _SHOWN)
        return f"learned({', '.join(shown)})"

    def _check(self, values: list[float], sound: list[bool]) -> None:
        """Asks the one that is furthest off; of an infinite parameter all values are NaN."""
        far = [abs(math.log(value)) if 0 < value < math.inf else math.inf for value in values]
        worst = max(range(len(values)), key=lambda i: (not sound[i], far[i]))
        value = values[worst]
        # a start at a limit is within it but for rounding
        if not LOW * (1 - 1e-9) <= value <= HIGH * (1 + 1e-9):
            raise ValueError(
                f"{self.name}[{worst}] was learned to {value:g}, must stay {RULE}: "
                "the bound asks for 0 or infinity, or the steps of its learning are too long"
            )
