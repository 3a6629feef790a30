"""Scores of positions, and rules for how many of the best positions descend in a step."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Self, cast

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.paces.sequential import InTurn
from ddlib.processes import LevelProcess
from ddlib.samplers.base import SamplingContext
from ddlib.utils.precision import numbers_on
from ddlib.utils.validation import check_number, require

_GROUPS = 32
"""Number of rows of the table in which the two largest entries are found."""
_ROWS = 16
"""Number of distributions in a CPU's cache."""


class Score(NamedTuple):
    """Score of a distribution over children; positions with the highest scores descend first."""

    of_log_probs: Callable[[Float[Tensor, "n K"]], Float[Tensor, "n"]]
    """Score from normalised log-probabilities."""
    of_probs: Callable[[Float[Tensor, "n K"]], Float[Tensor, "n"]]
    """The same from probabilities, which the loss has."""
    low: float = -math.inf
    """Smallest value."""
    high: float = math.inf
    """Largest value."""
    range: str = "any number"
    reads: bool = True
    """False if the score is the same for all distributions, which then are not evaluated."""

    @classmethod
    def of(cls, function: Callable[[Float[Tensor, "n K"]], Float[Tensor, "n"]]) -> Self:
        """Return the score that a function of normalised log-probabilities computes."""
        return cls(function, lambda probs: function(finite_log(probs)))

    def check(self, name: str, value: float, score: str) -> float:
        """Return a threshold of the score of this name, checked to be in its range."""
        number = check_number(
            name, value, -math.inf, math.inf, f"{self.range}, the range of {score}"
        )
        inside = number <= self.high
        require(
            self.low <= number <= self.high,
            f"{name} is {value}, must be {self.range}, the range of {score}: "
            f"{'everything' if inside else 'nothing'} satisfies it",
        )
        return number


def finite_log(probs: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
    """Return finite log-probabilities: probabilities that are rounded to 0 are set to the smallest
    normal number.
    """
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def entropy(log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    """Compute the entropies of distributions from normalised log-probabilities, in nats."""
    least = torch.finfo(log_probs.dtype).min  # clamped, so that 0 log 0 = 0
    rows = (
        _ROWS if log_probs.device.type == "cpu" else max(len(log_probs), 1)
    )  # small enough for a CPU's cache
    parts = (part.clamp_min(least) for part in log_probs.split(rows))
    return -torch.cat([part.exp().mul_(part).sum(-1) for part in parts])


def certainty(log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    """Compute minus the entropies of distributions from normalised log-probabilities, in nats."""
    return -entropy(log_probs)


def largest(values: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    """Return the largest entry of each row."""
    return values.amax(-1)


def lead(values: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    """Return the largest entry of each row minus the second one, if there is any."""
    best = two_largest(values)
    return best[:, 0] - best[:, 1:].sum(-1)


def two_largest(values: Float[Tensor, "n K"]) -> Float[Tensor, "n k"]:
    """Return the two largest entries of each row; one if it has no more.

    ``topk`` is slow over thousands of columns on a CPU.
    """
    width = values.shape[-1] // _GROUPS
    if width < 2:
        return values.topk(min(2, values.shape[-1]), -1).values
    groups = values[:, : _GROUPS * width].unflatten(-1, (_GROUPS, width))
    best, where = groups.amax(1).topk(2, -1)  # maxima of every width-th column, vectorised
    inside = groups.gather(2, where[:, None, :1].expand(-1, _GROUPS, 1)).squeeze(2)
    return torch.cat([inside, best[:, 1:], values[:, _GROUPS * width :]], -1).topk(2, -1).values


def _equal(values: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    return values.new_zeros(len(values))


def _certainty_of_probs(probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    return certainty(finite_log(probs))


def _largest_prob(log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    return largest(log_probs).exp()


def _lead_of_probs(log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    best = two_largest(log_probs).exp()
    return best[:, 0] - best[:, 1:].sum(-1)


EQUAL = Score(_equal, _equal, reads=False)
"""The same score for all: positions in their order."""
SCORES: Mapping[str, Score] = {
    "probability": Score(_largest_prob, largest, 1e-300, 1.0, "in (0, 1]"),
    "margin": Score(_lead_of_probs, lead, 0.0, 1.0, "in [0, 1]"),
    "entropy": Score(certainty, _certainty_of_probs, -math.inf, 0.0, "at most 0"),
}


class Ranked(NamedTuple):
    """Positions of each row in descending order of preference; those that are tokens come last."""

    score: Float64[Tensor, "B L"]
    level: Int64[Tensor, "B L"]
    """Number of remaining edges, 0 at tokens and at the prompt, which are never selected."""
    position: Int64[Tensor, "B L"]


Select = Callable[[Ranked], Bool[Tensor, "B L"]]
Least = Callable[[SamplingContext, int, Int64[Tensor, "B 1"]], Int64[Tensor, "B 1"]]


def select_none(ranked: Ranked) -> Bool[Tensor, "B L"]:
    """Select no positions beyond the least number."""
    return torch.zeros_like(ranked.level, dtype=torch.bool)


def select_first(ranked: Ranked, number: int) -> Bool[Tensor, "B L"]:
    """Select the first positions."""
    column = torch.arange(ranked.level.shape[1], device=ranked.level.device)
    return (column < number).expand_as(ranked.level)


def select_above(ranked: Ranked, bounds: float | tuple[float, ...]) -> Bool[Tensor, "B L"]:
    """Select the positions with at least this score, or the one of their next edge."""
    if isinstance(bounds, float):
        return ranked.score >= bounds
    bound = numbers_on(ranked.score.device, bounds)
    return ranked.score >= bound[(ranked.level - 1).clamp_min(0)]


def select_within(ranked: Ranked, gamma: float) -> Bool[Tensor, "B L"]:
    """Select positions until the sum of all entropies but the largest exceeds ``gamma`` nats."""
    entropies = -ranked.score
    return entropies.cumsum(-1) - entropies.cummax(-1).values <= gamma


def select_group(ranked: Ranked, pace: InTurn) -> Bool[Tensor, "B L"]:
    """Select the rest of the group that moves next along a pace."""
    length = ranked.level.shape[1]
    group = (ranks(pace, length) // pace.size).to(ranked.level.device, non_blocking=True)[
        ranked.position
    ]
    return group == group[:, :1]


def ranks(pace: InTurn, length: int) -> Int64[Tensor, "L"]:
    """Return the rank of each position in the order of a pace, a permutation of 0..L-1.

    Raises:
        ValueError: sequences that do not fit the pace.
    """
    pace.parts(length)
    return pace.turns(torch.zeros(1, length, dtype=torch.float64))[0].round().to(torch.int64)


def even_split(run: SamplingContext, k: int, left: Int64[Tensor, "B 1"]) -> Int64[Tensor, "B 1"]:
    """Return the number of descents in step ``k`` if all steps have as many, at least 1."""
    return (-(-left // (run.steps - k))).clamp_min(1)


def expected_edges(run: SamplingContext, times: Float64[Tensor, "n"]) -> Float64[Tensor, "B n"]:
    """Return the expected number of remaining edges of a position that is drawn, the mean over the
    components of its sequence.
    """
    processes = [cast(LevelProcess, each.process) for each in run.process.components]
    edges = torch.stack([each.expected_level(times) for each in processes])
    clean = run.process.tokens_as_states(torch.zeros_like(run.free, dtype=torch.int64))
    component = run.process.component_of(clean)
    counts = [(run.free & (component == k)).sum(-1) for k in range(len(processes))]
    counted = torch.stack(counts, 1).to(torch.float64)
    total = counted.sum(1, keepdim=True)
    shares = torch.where(total > 0, counted / total.clamp_min(1), 1 / len(processes))
    return (shares[..., None] * edges).sum(1)


def expected_number(
    run: SamplingContext, k: int, left: Int64[Tensor, "B 1"], whole: Callable[[Tensor], Tensor]
) -> Int64[Tensor, "B 1"]:
    """Return the expected number of descents between the two times of step ``k``, made whole."""
    times = run.times[k : k + 2].to(torch.float64)
    before, after = expected_edges(run, times).split(1, -1)
    # rounding errors next to integers and halves
    return whole((left * (1 - after / before)).round(decimals=9)).long()


class Count(NamedTuple):
    """Rule for the number of positions of a row that descend in a step."""

    select: Select = select_none
    """``(ranked) -> (B, L)`` bool, the positions that descend besides the least number."""
    least: Least = even_split
    """``(run, k, left) -> (B, 1)``, the least number of descents in step ``k``, of ``left`` edges:
    the positions that are ranked first.
    """
    by_times: bool = False
    """True if ``least`` depends on the times of the steps."""


EVENLY = Count()
"""As many edges in each step."""
BY_TIMES: Mapping[str, Count] = {
    "expected": Count(least=partial(expected_number, whole=torch.floor), by_times=True),
    "rounded": Count(least=partial(expected_number, whole=torch.round), by_times=True),
}
"""The expected number of descents in the time of a step, rounded down or to the nearest integer."""
