"""Sampling in the order of a pace: from left to right, by blocks, or by rectangles of pixels."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.paces import LeftToRight, Pace
from ddlib.paces.sequential import InTurn
from ddlib.samplers.base import Guarantees, SamplingContext, State
from ddlib.samplers.confidence import Confidence
from ddlib.samplers.ordered import OrderedSampler
from ddlib.typing import Tokens
from ddlib.utils.validation import check_flag, require


class InOrder(OrderedSampler):
    """Descent in the order in which the positions of a pace move, one edge at a time.

    ``Patches((28, 28), (7, 7))`` draws a picture rectangle by rectangle, each in raster order;
    ``LeftToRight()`` gives the order of the sampler of that name. The network takes one time per
    sequence, as for all ordered samplers; the pace determines the order only. With as many steps as
    edges a sequence is drawn by the chain rule; with fewer steps the remaining edges of a row are
    split evenly over the remaining steps. Without a prompt, as many steps as groups times edges
    make each step one group; with ``whole`` so do more steps, and a prompt changes nothing.
    ``Lanes``, ``Halton`` and ``Checkerboard`` keep the positions of a group apart, as those drawn
    at once are independent. The likelihood in this order is exact, ``ddlib.likelihood``.

    A new order is a new pace, a subclass of ``ddlib.paces.sequential.InTurn`` with ``turns``.

    Args:
        pace: pace whose groups of positions move in turn, in an order without chance.
        score: order of the positions within a group: None for that of the pace; or a score of
            ``Confidence``.
        whole: whether all positions of a group that are not tokens yet descend in the same step.
            The network is then called once per group and edge, however many steps there are.
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.

    Raises:
        TypeError: a pace whose positions do not move in turn; when sampling, a process without
            levels.
        ValueError: a pace with a random order; another score; when sampling, sequences that do not
            fit the pace.

    Example:
        >>> import ddlib as dd
        >>> dd.samplers.InOrder(dd.paces.Patches((2, 4), (2, 2))).ranks(8)
        tensor([0, 1, 4, 5, 2, 3, 6, 7])
    """

    def __init__(
        self,
        pace: Pace,
        score: str | None = None,
        force_transition: bool = False,
        whole: bool = False,
    ) -> None:
        if not isinstance(pace, InTurn):
            raise TypeError(
                f"pace is {pace!r}, must be one whose positions move in turn, such as LeftToRight "
                "or Patches"
            )
        require(not pace.random, f"pace is {pace!r}, must have a deterministic order")
        self.pace = pace
        self.score = score
        self.whole = check_flag("whole", whole)
        self._inside = None if score is None else Confidence(score)
        super().__init__(force_transition)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(LeftToRight()), cls(LeftToRight(), "margin")]

    @property
    def guarantees(self) -> Guarantees:
        return replace(super().guarantees, consistent_joint=not self.whole or self.pace.size == 1)

    @property
    def uses_predictions(self) -> bool:
        return self._inside is not None

    def ranks(self, length: int) -> Int64[Tensor, "L"]:
        """Return the rank of each position in the order, a permutation of 0..L-1.

        Raises:
            ValueError: sequences that do not fit the pace.
        """
        self.check_length(length)
        return (
            self.pace.turns(torch.zeros(1, length, dtype=torch.float64))[0].round().to(torch.int64)
        )

    def check_length(self, length: int) -> None:
        """Raise ValueError unless sequences of this length fit the pace."""
        self.pace.parts(length)

    def init(self, run: SamplingContext) -> State:
        """Draw the state at t = 1, after a check of the length."""
        self.check_length(run.free.shape[1])
        return super().init(run)

    def priority(self, z: Tokens) -> Float64[Tensor, "B L"]:
        ranks = self.ranks(z.shape[1])
        if (
            self._inside is not None
        ):  # groups one after the other; scores differ by less than _APART
            ranks = _APART * (ranks // self.pace.size)
        return -ranks.to(z.device, torch.float64).expand(z.shape)

    def confidence_of(self, probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
        return (
            super().confidence_of(probs)
            if self._inside is None
            else self._inside.confidence_of(probs)
        )

    def confidence(self, log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
        return (
            super().confidence(log_probs)
            if self._inside is None
            else self._inside.confidence(log_probs)
        )

    def choose(
        self,
        score: Float64[Tensor, "B L"],
        level: Int64[Tensor, "B L"],
        steps: int,
        noise: Float64[Tensor, "B L"] | float = 0.0,
        least: Int64[Tensor, "B 1"] | None = None,
    ) -> Bool[Tensor, "B L"]:
        chosen = super().choose(score, level, steps, noise, least)
        if not self.whole:
            return chosen
        length = level.shape[1]
        group = torch.where(
            level > 0, (self.ranks(length) // self.pace.size).to(level.device), length
        )
        return chosen | ((level > 0) & (group == group.amin(-1, keepdim=True)))

    def select(
        self, score: Float64[Tensor, "B L"], level: Int64[Tensor, "B L"]
    ) -> Bool[Tensor, "B L"]:
        return torch.zeros_like(level, dtype=torch.bool)


_APART = 1000
"""Distance between the scores of two groups.

Above the entropy, in nats, of any distribution over tokens.
"""
