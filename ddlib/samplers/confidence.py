"""Sampling order by confidence: the positions with the most certain predictions descend first."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.samplers.base import SamplingContext, State, level_process
from ddlib.samplers.ordered import OrderedSampler, levels
from ddlib.typing import Tokens
from ddlib.utils.random import rand
from ddlib.utils.validation import check_count, check_number, require


class Confidence(OrderedSampler):
    r"""Descent edge by edge, ordered by a score of the distribution of each position's children, before they are drawn.

        probability  the largest probability                  (LLaDA, MaskGIT)
        margin       the largest minus the second largest     (Dream, DUEL)
        entropy      minus the entropy in nats, <= 0          (Dream)

    Without ``per_step`` and ``threshold`` the remaining edges of a row are split evenly over the remaining steps, as in
    LLaDA. With as many steps as edges one position descends per network call, and the joint distribution of a sequence
    is exact in every order. Positions in the same step are drawn independently. Scores are computed from the logits
    before temperature and truncation. Rows are counted separately; the network is not evaluated at finished rows.

    Args:
        score: "probability", "margin" or "entropy".
        per_step: number of edges per row and network call. In the last step all remaining positions become tokens.
            "expected": the expected number of descents between the two times of the step, rounded down (Dream); this is
            0 in many steps of a fine grid, and large in the last ones. "rounded": the same, rounded to the nearest
            integer, halves to even (dllm).
        threshold: all positions with at least this score descend at once, at least the best one, and at least as many
            as an even split requires; a number, or one per edge, starting at the tokens. Excludes ``per_step``.
        temperature: scale of Gumbel noise that is added to the scores for the choice (Dream's ``alg_temp``), not for
            the draw; a threshold is compared to scores without it. 0 is deterministic; scores that agree to five digits
            are ordered by position.
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would let it leave.

    Raises:
        TypeError, ValueError: another score, per_step below 1, a threshold outside the range of the score, temperature
            below 0; when sampling, another number of thresholds than the process has edges, more edges than
            ``per_step`` times the steps, or a process without levels.
    """

    def __init__(
        self, score: str = "margin", per_step: int | Literal["expected", "rounded"] | None = None,
        threshold: float | Sequence[float] | None = None,
        temperature: float = 0.0, force_transition: bool = False,
    ) -> None:  # fmt: skip
        require(score in _SCORES, f"score is {score!r}, must be one of {', '.join(map(repr, _SCORES))}")
        require(
            per_step is None or threshold is None,
            f"per_step is {per_step} and threshold is {threshold}, must be one of them: either counts or scores decide",
        )
        self.score = score
        self.per_step: int | str | None = per_step
        if per_step is not None and per_step != "expected" and per_step != "rounded":
            self.per_step = check_count("per_step", per_step)
        if isinstance(threshold, Sequence) and not isinstance(threshold, str):
            self.threshold: float | tuple[float, ...] | None = tuple(
                _bound(f"threshold[{i}]", value, score) for i, value in enumerate(threshold)
            )
        else:
            self.threshold = None if threshold is None else _bound("threshold", threshold, score)
        self.temperature = check_number("temperature", temperature, 0, 1e6, ">= 0")
        super().__init__(force_transition)
        self.by_times = isinstance(self.per_step, str)
        self.consistent_joint = threshold is None and self.per_step in (None, 1)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls("entropy", temperature=0.5), cls("probability", threshold=0.5)]

    @property
    def deterministic(self) -> bool:
        return self.temperature == 0

    def init(self, run: SamplingContext) -> State:
        """Draw the state at t = 1, after a check of the number of edges."""
        state, edges = super().init(run), len(run.process.levels) - 1
        if isinstance(self.threshold, tuple):
            found = len(self.threshold)
            require(found == edges, f"threshold has {found} entries, must have {edges}: one per edge")
        if isinstance(self.per_step, int):
            edges = int(levels(run, state.z).sum(-1).max())
            need = -(-edges // self.per_step)
            require(
                run.steps >= need,
                f"steps is {run.steps}, must be at least {need}: a row has {edges} edges to go down, "
                f"and per_step is {self.per_step}",
            )
        return state

    def confidence(self, log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
        return _SCORES[self.score].of(log_probs)

    def noise(self, run: SamplingContext, z: Tokens) -> Float64[Tensor, "B L"]:
        if not self.temperature:
            return super().noise(run, z)
        gumbel = -torch.log(-torch.log1p(-rand(z.shape, run.generator, z.device)))
        return self.temperature * gumbel

    def select(self, score: Float64[Tensor, "B L"], level: Int64[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        if self.threshold is not None:
            bounds = torch.tensor(self.threshold, dtype=torch.float64, device=score.device)
            return score >= (bounds if bounds.ndim == 0 else bounds[(level - 1).clamp_min(0)])
        number = self.per_step if isinstance(self.per_step, int) else 0
        return (torch.arange(score.shape[1], device=score.device) < number).expand_as(level)

    def num_to_unmask(self, run: SamplingContext, k: int, left: Int64[Tensor, "B 1"]) -> Int64[Tensor, "B 1"] | None:
        if self.per_step not in _BY_TIMES:
            return None
        times = run.times[k : k + 2].to(torch.float64)
        chances = level_process(run).level_transition(torch.zeros_like(times), times)
        before, after = chances[:, 0] @ torch.arange(chances.shape[-1], dtype=torch.float64, device=times.device)
        share = (left * (1 - after / before)).round(decimals=9)  # rounding errors next to integers and halves
        return (share.floor() if self.per_step == "expected" else share.round()).long()


_BY_TIMES = ("expected", "rounded")
_GROUPS, _ROWS = 32, 16
"""Number of rows of the table in which the two largest entries are found, and of distributions in a CPU's cache."""


def entropy(log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    """Compute the entropies of distributions from normalised log-probabilities, in nats."""
    least = torch.finfo(log_probs.dtype).min  # clamped, so that 0 log 0 = 0
    rows = _ROWS if log_probs.device.type == "cpu" else max(len(log_probs), 1)  # small enough for a CPU's cache
    parts = (part.clamp_min(least) for part in log_probs.split(rows))
    return -torch.cat([part.exp().mul_(part).sum(-1) for part in parts])


def _margin(log_probs: Tensor) -> Tensor:
    best = _two_largest(log_probs).exp()
    return best[:, 0] - best[:, 1:].sum(-1)


def _two_largest(values: Float[Tensor, "n K"]) -> Float[Tensor, "n k"]:
    """Return the two largest entries of each row: ``topk``, which is slow over thousands of columns on a CPU."""
    width = values.shape[-1] // _GROUPS
    if width < 2:
        return values.topk(min(2, values.shape[-1]), -1).values
    groups = values[:, : _GROUPS * width].unflatten(-1, (_GROUPS, width))
    best, where = groups.amax(1).topk(2, -1)  # maxima of every width-th column, vectorised
    inside = groups.gather(2, where[:, None, :1].expand(-1, _GROUPS, 1)).squeeze(2)
    return torch.cat([inside, best[:, 1:], values[:, _GROUPS * width :]], -1).topk(2, -1).values


class _Score(NamedTuple):
    of: Callable[[Tensor], Tensor]
    low: float
    high: float
    rule: str

    def meets(self, value: float) -> str:
        """Return "nothing" or "everything" for a threshold outside the range of the score, else an empty string."""
        return "nothing" if value > self.high else "everything" if value < self.low else ""


_SCORES: Mapping[str, _Score] = {
    "probability": _Score(lambda log_probs: log_probs.amax(-1).exp(), 1e-300, 1.0, "in (0, 1]"),
    "margin": _Score(_margin, 0.0, 1.0, "in [0, 1]"),
    "entropy": _Score(lambda log_probs: -entropy(log_probs), -math.inf, 0.0, "at most 0"),
}


def _bound(name: str, value: float, score: str) -> float:
    """Return a threshold, checked to be in the range of the score."""
    kind = _SCORES[score]
    number = check_number(name, value, -math.inf, math.inf, f"{kind.rule}, where {score} lies")
    meets = kind.meets(number)
    require(not meets, f"{name} is {value}, must be {kind.rule}, where {score} lies: {meets} meets it")
    return number
