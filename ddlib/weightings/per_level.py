"""Weighting with one factor per level."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_number, require
from ddlib.weightings.base import Weighting, weighted


class PerLevel(Weighting):
    """One factor per level above the tokens.

    In a hierarchy (token loss, cluster loss, ...), else one for the mask.

    The weights of tokens (level 0) are unchanged.

    Args:
        factors: one number for each level 1..n of ``process.levels``.
        weighting: weights that are multiplied; default those of the bound.

    Raises:
        TypeError: factors that are not numbers; ``weighting`` is not a weighting.
        ValueError: a factor outside [0, 1e6], or no factors.
    """

    def __init__(self, factors: Sequence[float], weighting: Weighting | None = None) -> None:
        if not isinstance(factors, Sequence) or isinstance(factors, str):
            raise TypeError(
                f"factors is {factors!r}, must be a list of numbers, one per level above the tokens"
            )
        rule = "in [0, 1e6]"
        self.factors = tuple(
            check_number(f"factors[{i}]", v, 0, 1e6, rule) for i, v in enumerate(factors)
        )
        require(
            len(self.factors) > 0,
            "factors is empty, must have one factor per level above the tokens",
        )
        if weighting is not None and not isinstance(weighting, Weighting):
            raise TypeError(
                f"weighting is {weighting!r}, must be a ddlib.weightings.Weighting or None"
            )
        self.weighting = weighting

    @property
    def bound(self) -> bool:
        return set(self.factors) == {1.0} and (self.weighting is None or self.weighting.bound)

    @property
    def limit(self) -> float:
        return math.inf if self.weighting is None else self.weighting.limit

    @property
    def about(self) -> str:
        inner = "" if self.weighting is None else f"{self.weighting.about}, "
        return f"{inner}levels times {', '.join(f'{factor:g}' for factor in self.factors)}"

    def check(self, process: ForwardProcess) -> None:
        depth = len(process.levels) - 1
        if depth == 0:
            raise TypeError(
                f"factors is {self.factors}, {type(process).__name__} has only tokens: no level "
                "above them to weight"
            )
        require(
            len(self.factors) == depth,
            f"factors has {len(self.factors)} entries, must have {depth}: one per level above the "
            "tokens",
        )
        if self.weighting is not None:
            self.weighting.check(process)

    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        factors = torch.tensor([1.0, *self.factors], dtype=torch.float64, device=z.device)
        return weighted(self.weighting, process, weight, x, z, t) * factors[process.level_of(z)]

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls([2.0]), cls([2.0, 0.5]), cls([1.0, 0.0, 3.0])]
