"""Orders by the certainty of the network, from left to right, or along a pace."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, Self

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.paces import LeftToRight as LeftToRightPace
from ddlib.paces import Pace
from ddlib.paces.sequential import InTurn
from ddlib.samplers.base import Guarantees, SamplingContext, State
from ddlib.samplers.choices import (
    BY_TIMES,
    EVENLY,
    SCORES,
    Count,
    ranks,
    select_above,
    select_first,
    select_group,
    select_within,
)
from ddlib.samplers.ordered import Expected, Ordered, levels
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_count, check_flag, check_number, require

_APART = 1000
"""Distance between the scores of two groups: above the entropy, in nats, of any distribution over
tokens.
"""


def check_score(score: object) -> None:
    """Raise ValueError unless this is the name of a score."""
    require(score in SCORES, f"score is {score!r}, must be one of {', '.join(map(repr, SCORES))}")


class Edits(NamedTuple):
    """Memo of ``Confidence`` with ``edit``."""

    expected: Expected
    left: Int64[Tensor, "B"]
    """Number of steps that may still edit a row without masks, 0 for a row that no longer
    changes.
    """


class Confidence(Ordered):
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
        check_score(score)
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
        kind = SCORES[score]
        if isinstance(threshold, Sequence) and not isinstance(threshold, str):
            self.threshold: float | tuple[float, ...] | None = tuple(
                kind.check(f"threshold[{i}]", value, score) for i, value in enumerate(threshold)
            )
        else:
            self.threshold = (
                None if threshold is None else kind.check("threshold", threshold, score)
            )
        self.temperature = check_number("temperature", temperature, 0, 1e6, "in [0, 1e6]")
        self.force_transition = check_flag("force_transition", force_transition)
        self.edit = (
            None
            if edit is None
            else check_number("edit", edit, 0, math.nextafter(1, 0), "in [0, 1)")
        )
        self.edit_steps = check_count("edit_steps", edit_steps, 0)

    @property
    def guarantees(self) -> Guarantees:
        inherited = super().guarantees
        keeps_tokens = self.edit is None
        single = self.threshold is None and self.per_step in (None, 1)
        return replace(
            inherited,
            independent_draws=inherited.independent_draws and keeps_tokens,
            keeps_tokens=keeps_tokens,
            exact_marginals=keeps_tokens,
            consistent_joint=keeps_tokens and single,
            supports_joint_draws=keeps_tokens,
        )

    @property
    def counting(self) -> Count:
        if self.threshold is not None:
            return Count(partial(select_above, bounds=self.threshold))
        if isinstance(self.per_step, int):
            return Count(partial(select_first, number=self.per_step))
        return EVENLY if self.per_step is None else BY_TIMES[self.per_step]

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls("entropy", temperature=0.5), cls("probability", threshold=0.5)]

    def init(self, run: SamplingContext) -> State:
        """Draw the state at t = 1, after a check of the number of edges."""
        state = super().init(run)
        edges = len(run.process.levels) - 1
        if isinstance(self.threshold, tuple):
            count = len(self.threshold)
            require(
                count == edges, f"threshold has {count} entries, must have {edges}: one per edge"
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
        expected, left = state.memo
        level = levels(run, state.z)
        edited = state.z.clone()
        # at the masks too, so that one call serves both
        where = (level > 0) | (run.free & (left > 0)[:, None])
        for both in run.network.at(state.z, state.t, where):
            part = both.take(level[both.b, both.i] == 0)
            best, token = part.token_logits(torch.zeros_like(part.z))[:, 0].softmax(-1).max(-1)
            kept = torch.where(best > self.edit, token, part.z)
            edited[part.b, part.i] = part.as_states(kept)
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
        if self.edit is None:
            return super().select_rows(state, rows)
        (expected, left) = state.memo
        picked = super().select_rows(state._replace(memo=expected), rows)
        return picked._replace(memo=Edits(picked.memo, left[rows]))


class EntropyBounded(Ordered):
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

    score = "entropy"

    def __init__(self, gamma: float = 0.1, force_transition: bool = False) -> None:
        unbounded = isinstance(gamma, float) and gamma == math.inf
        self.gamma = gamma if unbounded else check_number("gamma", gamma, 0, math.inf, ">= 0")
        self.force_transition = check_flag("force_transition", force_transition)

    @property
    def counting(self) -> Count:
        return Count(partial(select_within, gamma=self.gamma))

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(0.0), cls(1.0), cls(math.inf)]

    @property
    def guarantees(self) -> Guarantees:
        return replace(super().guarantees, consistent_joint=self.gamma == 0)


class LeftToRight(Ordered):
    r"""Descent of the leftmost position that is not a token yet, one edge at a time.

    With as many steps as edges a sequence is drawn by the chain rule, :math:`p(x) = \prod_l p(x_l |
    x_{<l}, masks)`, in a hierarchy cluster by cluster. With fewer steps the remaining edges of a
    row are split evenly over the remaining steps, and as many of the leftmost positions descend one
    edge each. The network is evaluated at these positions only.

    Args:
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.

    Raises:
        TypeError: when sampling, a process without levels.
    """

    def __init__(self, force_transition: bool = False) -> None:
        self.force_transition = check_flag("force_transition", force_transition)


class InOrder(Ordered):
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
        if score is not None:
            check_score(score)
        self.pace = pace
        self.score = score
        self.whole = check_flag("whole", whole)
        self.force_transition = check_flag("force_transition", force_transition)

    @property
    def counting(self) -> Count:
        return Count(partial(select_group, pace=self.pace)) if self.whole else EVENLY

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(LeftToRightPace()), cls(LeftToRightPace(), "margin")]

    @property
    def guarantees(self) -> Guarantees:
        return replace(super().guarantees, consistent_joint=not self.whole or self.pace.size == 1)

    def ranks(self, length: int) -> Int64[Tensor, "L"]:
        """Return the rank of each position in the order, a permutation of 0..L-1.

        Raises:
            ValueError: sequences that do not fit the pace.
        """
        return ranks(self.pace, length)

    def check_length(self, length: int) -> None:
        """Raise ValueError unless sequences of this length fit the pace."""
        self.pace.parts(length)

    def init(self, run: SamplingContext) -> State:
        """Draw the state at t = 1, after a check of the length."""
        self.check_length(run.free.shape[1])
        return super().init(run)

    def priority(self, z: Tokens) -> Float64[Tensor, "B L"]:
        rank = self.ranks(z.shape[1])
        if self.scoring.reads:  # groups one after the other; scores differ by less than _APART
            rank = _APART * (rank // self.pace.size)
        return -rank.to(z.device, torch.float64, non_blocking=True).expand(z.shape)
