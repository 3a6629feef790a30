"""Sampling order bounded by entropy: as many positions per step as their entropies allow."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.samplers.base import Guarantees
from ddlib.samplers.confidence import entropy
from ddlib.samplers.ordered import OrderedSampler
from ddlib.utils.validation import check_number


class EntropyBounded(OrderedSampler):
    r"""Descent of the k positions of lowest entropy in each row, with the largest k that
    :math:`\gamma` allows.

    .. math:: \sum_{i \le k} H_i - \max_{i \le k} H_i \le \gamma

    H is the entropy of the distribution of a position's children, in nats. The left side bounds the
    mutual information of positions drawn at once (EB-sampler, arXiv 2505.24857). A choice among few
    clusters has low entropy, so many positions descend at once. At least one descends, and at least
    as many as an even split of the remaining edges over the remaining steps requires. ``gamma =
    0``: one edge per network call, together with positions of entropy 0; infinite: all positions
    descend one level per call.

    Args:
        gamma: in nats, >= 0.
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.

    Raises:
        TypeError, ValueError: gamma below 0; when sampling, a process without levels.
    """

    def __init__(self, gamma: float = 0.1, force_transition: bool = False) -> None:
        unbounded = isinstance(gamma, float) and gamma == math.inf
        self.gamma = gamma if unbounded else check_number("gamma", gamma, 0, math.inf, ">= 0")
        super().__init__(force_transition)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(0.0), cls(1.0), cls(math.inf)]

    @property
    def guarantees(self) -> Guarantees:
        return replace(super().guarantees, consistent_joint=self.gamma == 0)

    def confidence(self, log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
        return -entropy(log_probs)

    def select(
        self, score: Float64[Tensor, "B L"], level: Int64[Tensor, "B L"]
    ) -> Bool[Tensor, "B L"]:
        entropies = -score
        return entropies.cumsum(-1) - entropies.cummax(-1).values <= self.gamma
