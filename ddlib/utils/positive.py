"""Positive parameters with learned ratios: speeds of the edges of a tree, powers of tokens."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ddlib.utils.precision import Float64Module
from ddlib.utils.validation import check_number

LOW, HIGH, RULE = 1e-3, 1e3, "in [0.001, 1000]"
"""Limits of all given or learned values."""

_SHOWN = 6
_SHARP = 16.0


def check_positive(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Return the values as floats after checking the limits.

    Error messages name value i ``name[i]``.
    """
    return tuple(
        check_number(f"{name}[{i}]", value, LOW, HIGH, RULE) for i, value in enumerate(values)
    )


class PositiveParameter(Float64Module):
    r"""Positive numbers :math:`\exp(\lambda_i - m(\lambda) + c)` with learned :math:`\lambda`.

    Only ratios are learned.

    :math:`m(\lambda) = -\frac{1}{16} \log \sum_i e^{-16 \lambda_i}` is a smooth minimum, and c its
    initial value, so the smallest number stays nearly constant. A common factor of speeds only
    reparameterises time. The bound of a network without time input does not depend on it. But
    tokens leave a slow edge late, where floating-point times near 1 are no longer resolved, and
    tokens that have not jumped by then would be missing in the bound.

    Args:
        name: name of the numbers in error messages.
        values: initial values, each in [0.001, 1000].

    Raises:
        TypeError, ValueError: a value that is not a number within the limits.
    """

    log: Tensor
    """(n,) the parameter; stays float64 if the module is cast."""
    slowest: Tensor

    def __init__(self, name: str, values: Sequence[float]) -> None:
        super().__init__()
        start = torch.tensor(check_positive(name, values), dtype=torch.float64).log()
        self.name = name
        self.log = nn.Parameter(start)
        self.slowest = _smooth_min(start)

    def forward(self) -> Float64[Tensor, "n"]:
        """Return the current values, differentiable with respect to ``log``.

        Raises:
            ValueError: a value has become 0, infinite or NaN.
        """
        values = self._now()
        if not values.is_meta:
            # an infinite parameter makes all values NaN
            sound = torch.where(self.log.isfinite().all(), values, self.log.exp())
            self._check(sound.detach().tolist(), self.log.detach().isfinite().tolist())
        return values

    def _now(self) -> Tensor:
        return (self.log - _smooth_min(self.log) + self.slowest).exp()

    def __repr__(self) -> str:
        """The first few current values."""
        now = self._now().detach()
        if now.is_meta:
            return "learned"
        shown = [f"{value:.4g}" for value in now[:_SHOWN].tolist()] + ["..."] * (len(now) > _SHOWN)
        return f"learned({', '.join(shown)})"

    def _check(self, values: list[float], sound: list[bool]) -> None:
        """Raise ValueError if the value that is furthest from 1 is out of range."""
        far = [abs(math.log(value)) if 0 < value < math.inf else math.inf for value in values]
        worst = max(range(len(values)), key=lambda i: (not sound[i], far[i]))
        value = values[worst]
        # an initial value at a limit may exceed it by rounding
        if not LOW * (1 - 1e-9) <= value <= HIGH * (1 + 1e-9):
            raise ValueError(
                f"{self.name}[{worst}] has the learned value {value:g}, must stay {RULE}: the "
                "optimum of the bound is "
                "0 or infinity, or the learning rate is too large"
            )


def _smooth_min(log: Tensor) -> Tensor:
    return -torch.logsumexp(-_SHARP * log, 0) / _SHARP
