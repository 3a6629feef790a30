"""Sampling order by confidence: the positions with the most certain predictions descend first."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.samplers.base import Guarantees, SamplingContext, State, level_process
from ddlib.samplers.ordered import Expected, OrderedSampler, defined_below, levels
from ddlib.typing import Times, Tokens
from ddlib.utils.random import rand
from ddlib.utils.validation import check_count, check_number, require


class Edits(NamedTuple):
    """Memo of ``Confidence`` with ``edit``."""

    expected: Expected
    left: Int64[Tensor, "B"]
    """Number of steps that may still edit a row without masks, 0 for a row that no longer changes.
    """


class Confidence(OrderedSampler):
    r"""Descent edge by edge, ordered by a score of the distribution of each position's children,
    before they are drawn.

        probability  the largest probability                  (LLaDA, MaskGIT)
        margin       the largest minus the second largest     (Dream, DUEL)
        entropy      minus the entropy in nats, <= 0          (Dream)

    Without ``per_step`` and ``threshold`` the remaining edges of a row are split evenly over the
    remaining steps, as in LLaDA. With as many steps as edges one position descends per network
    call, and the joint distribution of a sequence is exact in every order. Positions in the same
    step are drawn independently. Scores are computed from the logits before temperature and
    truncation. Rows are counted separately; the network is not evaluated at finished rows, except
    with ``edit``.

    With ``edit`` a token that was drawn is replaced in later steps by the likeliest token of the
    network's output at its position, if that is another one with a probability above ``edit``. This
    is token-to-token editing as LLaDA2.1 decodes (arXiv 2602.08676; JointThreshold in SGLang).
    Filling and editing share a network call. A row without masks is edited until a step changes
    nothing, at most ``edit_steps`` times, so ``steps`` must leave steps for it. The output is read
    as it is: with ``parameterization="posterior"`` and masks it is the token itself, and nothing is
    edited. The output at unmasked positions is meaningful only if the network was trained with
    wrong tokens there, as LLaDA2.1 was; with plain masks it was not, and the distribution of the
    samples is not that of the model. ``Gibbs`` and ``Remask`` keep the distribution. There is no
    likelihood with ``edit``.

    Args:
        score: "probability", "margin" or "entropy".
        per_step: number of edges per row and network call. In the last step all remaining positions
            become tokens. "expected": the expected number of descents between the two times of the
            step, rounded down (Dream); this is 0 in many steps of a fine grid, and large in the
            last ones. "rounded": the same, rounded to the nearest integer, halves to even (dllm).
        threshold: all positions with at least this score descend at once, at least the best one,
            and at least as many as an even split requires; a number, or one per edge, starting at
            the tokens. Excludes ``per_step``.
        temperature: scale of Gumbel noise that is added to the scores for the choice (Dream's
            ``alg_temp``), not for the draw; a threshold is compared to scores without it. 0 is
            deterministic; scores that are equal after rounding to five digits are ordered by
            position.
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.
        edit: probability in [0, 1) above which another token replaces one that was drawn; None for
            no editing.
        edit_steps: largest number of steps that edit a row without masks; along blocks, for each
            block.

    Raises:
        TypeError, ValueError: another score, per_step below 1, a threshold outside the range of the
            score, temperature below 0, edit outside [0, 1), edit_steps below 0; when sampling,
            another number of thresholds than the process has edges, more edges than ``per_step``
            times the steps, or a process without levels.
    """

    def __init__(
        self,
        score: str = "margin",
        per_step: int | Literal["expected", "rounded"] | None = None,
        threshold: float | Sequence[float] | None = None,
        temperature: float = 0.0,
        force_transition: bool = False,
        edit: float | None = None,
        edit_steps: int = 16,
    ) -> None:
        require(
            score in _SCORES, f"score is {score!r}, must be one of {', '.join(map(repr, _SCORES))}"
        )
        require(
            per_step is None or threshold is None,
            f"per_step is {per_step} and threshold is {threshold}, only one may be given: either "
            "counts or scores "
            "determine the positions",
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
        self.temperature = check_number("temperature", temperature, 0, 1e6, "in [0, 1e6]")
        super().__init__(force_transition)
        self.edit = (
            None
            if edit is None
            else check_number("edit", edit, 0, math.nextafter(1, 0), "in [0, 1)")
        )
        self.edit_steps = check_count("edit_steps", edit_steps, 0)

    @property
    def guarantees(self) -> Guarantees:
        keeps_tokens = self.edit is None
        single = self.threshold is None and self.per_step in (None, 1)
        return replace(
            super().guarantees,
            exact_marginals=keeps_tokens,
            consistent_joint=keeps_tokens and single,
            by_times=isinstance(self.per_step, str),
            supports_constraint=keeps_tokens,
        )

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls("entropy", temperature=0.5), cls("probability", threshold=0.5)]

    @property
    def deterministic(self) -> bool:
        return self.temperature == 0

    @property
    def replaces_tokens(self) -> bool:
        return self.edit is not None

    def init(self, run: SamplingContext) -> State:
        """Draw the state at t = 1, after a check of the number of edges."""
        state = super().init(run)
        edges = len(run.process.levels) - 1
        if isinstance(self.threshold, tuple):
            found = len(self.threshold)
            require(
                found == edges, f"threshold has {found} entries, must have {edges}: one per edge"
            )
        if isinstance(self.per_step, int):
            edges = int(levels(run, state.z).sum(-1).max())
            need = -(-edges // self.per_step)
            require(
                run.steps >= need,
                f"steps is {run.steps}, must be at least {need}: a row must descend {edges} edges, "
                "and per_step is "
                f"{self.per_step}",
            )
        if self.edit is None:
            return state
        return state._replace(
            memo=Edits(state.memo, torch.full_like(state.z[:, 0], self.edit_steps))
        )

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        """Fill masks, and with ``edit`` replace tokens, by the output of one network call."""
        if self.edit is None:
            return super().step(run, state, k)
        (expected, left), level = state.memo, levels(run, state.z)
        edited = state.z.clone()
        # at the masks too, so that one call serves both
        where = (level > 0) | (run.free & (left > 0)[:, None])
        for both in run.network.at(state.z, state.t, where):
            part = both.take(level[both.b, both.i] == 0)
            best, token = part.token_logits(torch.zeros_like(part.z))[:, 0].softmax(-1).max(-1)
            edited[part.b, part.i] = torch.where(best > self.edit, token, part.z)
        changed = edited != state.z
        full = ~(level > 0).any(1)
        after = super().step(run, state._replace(memo=expected), k)
        left = torch.where(full, torch.where(changed.any(1), left - 1, 0), left)
        return State(torch.where(changed, edited, after.z), after.t, Edits(expected, left))

    def time_of(self, run: SamplingContext, state: State) -> Times:
        return super().time_of(
            run, state if self.edit is None else state._replace(memo=state.memo.expected)
        )

    def select_rows(self, state: State, rows: Int64[Tensor, "n"]) -> State:
        picked = super().select_rows(state, rows)
        return (
            picked
            if self.edit is None
            else picked._replace(memo=state.memo._replace(left=state.memo.left[rows]))
        )

    def confidence(self, log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
        number = _SCORES[self.score].number
        return -entropy(log_probs) if number is None else _lead(_largest(log_probs, number).exp())

    def confidence_of(self, probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
        number = _SCORES[self.score].number
        if number is None or defined_below(self, Confidence, "confidence"):
            return super().confidence_of(probs)
        return _lead(_largest(probs, number))

    def noise(self, run: SamplingContext, z: Tokens) -> Float64[Tensor, "B L"]:
        if not self.temperature:
            return super().noise(run, z)
        gumbel = -torch.log(-torch.log1p(-rand(z.shape, run.generator, z.device)))
        return self.temperature * gumbel

    def select(
        self, score: Float64[Tensor, "B L"], level: Int64[Tensor, "B L"]
    ) -> Bool[Tensor, "B L"]:
        if self.threshold is not None:
            bounds = torch.tensor(self.threshold, dtype=torch.float64, device=score.device)
            return score >= (bounds if bounds.ndim == 0 else bounds[(level - 1).clamp_min(0)])
        number = self.per_step if isinstance(self.per_step, int) else 0
        return (torch.arange(score.shape[1], device=score.device) < number).expand_as(level)

    def num_to_unmask(
        self, run: SamplingContext, k: int, left: Int64[Tensor, "B 1"]
    ) -> Int64[Tensor, "B 1"] | None:
        if self.per_step not in _BY_TIMES:
            return None
        times = run.times[k : k + 2].to(torch.float64)
        chances = level_process(run).level_transition(torch.zeros_like(times), times)
        before, after = chances[:, 0] @ torch.arange(
            chances.shape[-1], dtype=torch.float64, device=times.device
        )
        share = (left * (1 - after / before)).round(
            decimals=9
        )  # rounding errors next to integers and halves
        return (share.floor() if self.per_step == "expected" else share.round()).long()


_BY_TIMES = ("expected", "rounded")
_GROUPS, _ROWS = 32, 16
"""Number of rows of the table in which the two largest entries are found, and of distributions in a
CPU's cache.
"""


def entropy(log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
    """Compute the entropies of distributions from normalised log-probabilities, in nats."""
    least = torch.finfo(log_probs.dtype).min  # clamped, so that 0 log 0 = 0
    rows = (
        _ROWS if log_probs.device.type == "cpu" else max(len(log_probs), 1)
    )  # small enough for a CPU's cache
    parts = (part.clamp_min(least) for part in log_probs.split(rows))
    return -torch.cat([part.exp().mul_(part).sum(-1) for part in parts])


def _lead(best: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
    """Return the first entries of rows minus the second ones, if there are any."""
    return best[:, 0] - best[:, 1:].sum(-1)


def _largest(values: Float[Tensor, "n K"], number: int) -> Float[Tensor, "n k"]:
    """Return the one or two largest entries of each row.

    ``topk`` is slow over thousands of columns on a CPU.
    """
    if number == 1:
        return values.amax(-1, keepdim=True)
    width = values.shape[-1] // _GROUPS
    if width < 2:
        return values.topk(min(2, values.shape[-1]), -1).values
    groups = values[:, : _GROUPS * width].unflatten(-1, (_GROUPS, width))
    best, where = groups.amax(1).topk(2, -1)  # maxima of every width-th column, vectorised
    inside = groups.gather(2, where[:, None, :1].expand(-1, _GROUPS, 1)).squeeze(2)
    return torch.cat([inside, best[:, 1:], values[:, _GROUPS * width :]], -1).topk(2, -1).values


class _Score(NamedTuple):
    number: int | None
    """Number of the largest probabilities that it depends on; None if on all."""
    low: float
    high: float
    rule: str

    def meets(self, value: float) -> str:
        """Return "nothing" or "everything" for a threshold outside the range of the score, else an
        empty string.
        """
        return "nothing" if value > self.high else "everything" if value < self.low else ""


_SCORES: Mapping[str, _Score] = {
    "probability": _Score(1, 1e-300, 1.0, "in (0, 1]"),
    "margin": _Score(2, 0.0, 1.0, "in [0, 1]"),
    "entropy": _Score(None, -math.inf, 0.0, "at most 0"),
}


def _bound(name: str, value: float, score: str) -> float:
    """Return a threshold, checked to be in the range of the score."""
    kind = _SCORES[score]
    number = check_number(name, value, -math.inf, math.inf, f"{kind.rule}, the range of {score}")
    meets = kind.meets(number)
    require(
        not meets,
        f"{name} is {value}, must be {kind.rule}, the range of {score}: {meets} satisfies it",
    )
    return number
