"""The positions that the network is surest about come down first."""

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
    r"""Positions go down edge by edge, the surest first: by the law of its children before one of them is drawn.

        probability  the largest of the law             (LLaDA, MaskGIT)
        margin       the largest less the second        (Dream, DUEL)
        entropy      minus its entropy in nats, <= 0    (Dream)

    Without ``per_step`` and ``threshold`` the edges that a row has left are split evenly over the steps left, as in
    LLaDA: with as many steps as edges, one goes per network call, and the joint law of a text is exact whatever the
    order. Several at once are drawn independently of each other. Scores are those of the network, before temperature
    and top-p. Rows are counted on their own, and one that is finished is asked about no more.

    Args:
        score: "probability", "margin" or "entropy".
        per_step: how many edges of a row go per network call. On the last step all that is left lands on words.
            "expected": as many as come down on average between the two times of the step, rounded down (Dream): none
            in many steps of a fine grid, and many in the last ones. "rounded": the same, rounded to the nearest, and
            half to even (dllm).
        threshold: all positions whose score is at least this go at once, at least the best one, and at least as many
            as an even split asks for; a number, or one per edge, words' edge first. Not together with ``per_step``.
        temperature: of the choice, not of the draw: Gumbel noise times this is added to the scores to find the best
            (Dream's ``alg_temp``); a threshold is held against scores without it. 0 is deterministic; scores that agree
            to five digits go by position.
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.

    Raises:
        TypeError, ValueError: another score, per_step below 1, a threshold that nothing or everything meets,
            temperature below 0; when sampling, another number of thresholds than the process has edges, more edges than
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
        """As for every order, after edges were counted."""
        state, edges = super().init(run), len(run.process.levels) - 1
        if isinstance(self.threshold, tuple):
            found = len(self.threshold)
            require(found == edges, f"threshold has {found} entries, must have {edges}: one per edge")
        if isinstance(self.per_step, int):
            most = int(levels(run, state.z).sum(-1).max())
            need = -(-most // self.per_step)
            require(
                run.steps >= need,
                f"steps is {run.steps}, must be at least {need}: a row has {most} edges to go down, "
                f"and per_step is {self.per_step}",
            )
        return state

    def confidence(self, law: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
        return _SCORES[self.score].of(law)

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
        if self.per_step not in _BY_CLOCK:
            return None
        times = run.times[k : k + 2].to(torch.float64)
        chances = level_process(run).level_transition(torch.zeros_like(times), times)
        before, after = chances[:, 0] @ torch.arange(chances.shape[-1], dtype=torch.float64, device=times.device)
        share = (left * (1 - after / before)).round(decimals=9)  # a whole number, or half of one, may be just below
        return (share.floor() if self.per_step == "expected" else share.round()).long()


_BY_CLOCK = ("expected", "rounded")


def entropy(law: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    """The entropies of normalised log-laws, in nats."""
    return -torch.linalg.vecdot(law.exp(), law.clamp_min(torch.finfo(law.dtype).min))  # 0 log 0 = 0


def _margin(law: Tensor) -> Tensor:
    best = law.topk(min(2, law.shape[-1]), -1).values.exp()
    return best[:, 0] - best[:, 1:].sum(-1)


class _Score(NamedTuple):
    of: Callable[[Tensor], Tensor]
    low: float
    high: float
    rule: str

    def meets(self, value: float) -> str:
        """What meets a threshold; empty where that depends on the law."""
        return "nothing" if value > self.high else "everything" if value < self.low else ""


_SCORES: Mapping[str, _Score] = {
    "probability": _Score(lambda law: law.amax(-1).exp(), 1e-300, 1.0, "in (0, 1]"),
    "margin": _Score(_margin, 0.0, 1.0, "in [0, 1]"),
    "entropy": _Score(lambda law: -entropy(law), -math.inf, 0.0, "at most 0"),
}


def _bound(name: str, value: float, score: str) -> float:
    """A threshold, checked to lie where the score does."""
    known = _SCORES[score]
    number = check_number(name, value, -math.inf, math.inf, f"{known.rule}, where {score} lies")
    meets = known.meets(number)
    require(not meets, f"{name} is {value}, must be {known.rule}, where {score} lies: {meets} meets it")
    return number
