"""Samplers that choose the positions that descend next."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.processes import LevelProcess
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State
from ddlib.samplers.choices import EQUAL, EVENLY, SCORES, Count, Ranked, Score, expected_edges
from ddlib.samplers.reverse_step import draw_noise, draw_states
from ddlib.samplers.runtime.model import Predictions
from ddlib.typing import Times, Tokens
from ddlib.utils.random import rand
from ddlib.utils.validation import check_flag, check_number

_GRID = 257
"""Number of times at which the expected level is tabulated; in between it is interpolated."""


class Expected(NamedTuple):
    """Expected number of remaining edges of a position of each sequence, tabulated over times."""

    times: Float64[Tensor, "n"]
    edges: Float64[Tensor, "B n"]


class Turn(NamedTuple):
    """Plan of a step: the positions that descend, before their states are drawn."""

    predictions: Iterable[Predictions]
    """Model output at the positions that descend; to be iterated once."""
    target: Int64[Tensor, "B L"]
    """Level of every position after the step."""
    preference: Float64[Tensor, "B L"]
    """Scores by which positions are chosen, highest first, and equal ones in order of position."""


class Ordered(Sampler):
    """Descent of one hierarchy edge per step, at the positions that a score of their child
    distributions ranks first.

    In a process with levels neither these distributions nor the optimal model output depend on the
    time, given the states (theory section 10). A step may thus choose the positions that descend to
    one of their children, if it chooses *before* it draws: a choice among drawn children would be
    biased towards the likely ones. In the last step all remaining positions become tokens at once.

    The network is evaluated at all positions that are not tokens yet, or, if the choice does not
    depend on the distributions, at the chosen ones only. Its time input is the time at which the
    expected number of remaining edges equals the actual one. An order without noise has an exact
    likelihood, ``ddlib.likelihood``.

    Args:
        score: "probability", "margin" or "entropy", as in ``Confidence``, or a ``Score``. None if
            positions are equal, and descend in their order or in that of ``priority``.
        count: how many positions descend in a step.
        temperature: scale of Gumbel noise that is added to the scores for the choice. A subclass
            with another ``noise`` has a positive one.
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.
    """

    requires = LevelProcess
    instead = "use Psi, which has no order"
    score: str | Score | None = None
    count: Count = EVENLY
    temperature: float = 0.0

    def __init__(
        self,
        score: str | Score | None = "margin",
        count: Count = EVENLY,
        temperature: float = 0.0,
        force_transition: bool = False,
    ) -> None:
        self.score = score
        self.count = count
        self.temperature = check_number("temperature", temperature, 0, 1e6, "in [0, 1e6]")
        self.force_transition = check_flag("force_transition", force_transition)

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(
            on_time_grid=False,
            by_times=self.counting.by_times,
            independent_draws=self.deterministic,
            keeps_tokens=True,
            movable_positions=True,
            supports_joint_draws=True,
            forces_transitions=self.force_transition,
        )

    @property
    def scoring(self) -> Score:
        """The score of distributions."""
        if self.score is None:
            return EQUAL
        return SCORES[self.score] if isinstance(self.score, str) else self.score

    @property
    def counting(self) -> Count:
        """The rule for the number of positions."""
        return self.count

    @property
    def deterministic(self) -> bool:
        """True if the choice is a function of the states."""
        return self.temperature == 0

    def noise(self, run: SamplingContext, z: Tokens) -> Float64[Tensor, "B L"]:
        """Draw the noise that is added to the scores before positions are sorted."""
        if self.deterministic:
            return torch.zeros(z.shape, dtype=torch.float64, device=z.device)
        gumbel = -torch.log(-torch.log1p(-rand(z.shape, run.generator, z.device)))
        return self.temperature * gumbel

    def priority(self, z: Tokens) -> Float64[Tensor, "B L"]:
        """Return scores of the positions themselves, which are added before positions are sorted.

        0 by default.
        """
        return torch.zeros(z.shape, dtype=torch.float64, device=z.device)

    def choose(
        self,
        score: Float64[Tensor, "B L"],
        level: Int64[Tensor, "B L"],
        least: Int64[Tensor, "B 1"],
        noise: Float64[Tensor, "B L"] | float = 0.0,
    ) -> Bool[Tensor, "B L"]:
        """Choose the positions that descend an edge, row by row; deterministic without noise.

        Args:
            score: (B, L) scores of the child distributions, highest first; scores that are equal
                after rounding to five digits are ordered by position.
            level: (B, L), 0 at tokens and at the prompt.
            least: (B, 1) least number of positions.
            noise: (B, L), noise and priority, added to the scores for sorting.

        Returns:
            (B, L) bool.
        """
        preference = _round(score + noise).masked_fill(level == 0, -torch.inf)
        order = preference.sort(dim=-1, descending=True, stable=True).indices
        ranked = Ranked(score.gather(1, order), level.gather(1, order), order)
        first = torch.arange(level.shape[1], device=level.device) < least
        chosen = first | self.counting.select(ranked)
        return torch.zeros_like(chosen).scatter(1, order, chosen) & (level > 0)

    def init(self, run: SamplingContext) -> State:
        """Draw the state at t = 1; the memo holds the table of expected edges for
        ``model_time``.
        """
        times = torch.linspace(0, 1, _GRID, dtype=torch.float64, device=run.times.device)
        state = super().init(run)
        edges = expected_edges(run, times)
        return State(state.z, state.t, Expected(times, edges.cummax(1).values))

    def plan_step(
        self,
        run: SamplingContext,
        state: State,
        k: int,
        noise: Float64[Tensor, "B L"] | float = 0.0,
        group: int | None = None,
    ) -> Turn:
        """Choose the positions that descend in step ``k`` and their levels.

        Used for sampling and for likelihoods.

        Args:
            run: the call of ``sample``.
            state: the present state.
            k: number of the step.
            noise: result of ``noise``; 0 for a deterministic order.
            group: minimal number of positions per row, in place of that of ``count``.
        """
        z = state.z
        level = levels(run, z)
        offset = noise + self.priority(z)
        score = torch.zeros_like(offset)
        if run.steps - k == 1:
            target = torch.where(level > 0, 0, run.process.level_of(z))
            return Turn(run.network.at(z, state.t, level > 0), target, _round(offset))
        left = level.sum(-1, keepdim=True)
        least = self.counting.least(run, k, left) if group is None else torch.full_like(left, group)
        predictions: Iterable[Predictions]
        if self.scoring.reads:
            evaluated = list(run.network.at(z, state.t, level > 0))
            score = self.scores(run, evaluated, z, level)
            chosen = self.choose(score, level, least, offset)
            predictions = chain.from_iterable(part.within(chosen) for part in evaluated)
        else:
            chosen = self.choose(score, level, least, offset)
            predictions = run.network.at(z, state.t, chosen)
        target = torch.where(chosen, level - 1, run.process.level_of(z))
        return Turn(predictions, target, _round(score + offset))

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        # both are drawn at all positions, so that a sequence's noise does not depend on its states
        ties = self.noise(run, state.z)
        noise = draw_noise(run, self.force_transition, single=run.steps - k > 1)
        predictions, target, _ = self.plan_step(run, state, k, ties)
        z = draw_states(run, predictions, state.z, target, noise, self.force_transition)
        return State(z, model_time(run, z, state.memo), state.memo)

    def time_of(self, run: SamplingContext, state: State) -> Times:
        return model_time(run, state.z, state.memo)

    def select_rows(self, state: State, rows: Int64[Tensor, "n"]) -> State:
        """Return the state of selected rows."""
        expected = state.memo._replace(edges=state.memo.edges[rows])
        return State(state.z[rows], state.t[rows], expected)

    def scores(
        self,
        run: SamplingContext,
        predictions: Sequence[Predictions],
        z: Tokens,
        level: Int64[Tensor, "B L"],
    ) -> Float64[Tensor, "B L"]:
        """Compute the scores of the child distributions at the positions of the predictions, 0 at
        others, given the remaining edges (B, L) of all.
        """
        score = torch.zeros(z.shape, dtype=torch.float64, device=z.device)
        for rows, columns, log_probs in run.draws.log_probs(
            predictions, z, level - 1, self.force_transition
        ):
            score[rows, columns] = self.scoring.of_log_probs(log_probs).to(torch.float64)
        return score


def _round(preference: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
    """Round scores to five digits, of those below 0.1 five significant ones.

    Equal states have equal scores up to the network's rounding errors, which depend on the batch.
    Scores of a network that is hardly trained are small: with five decimals many of them would be
    equal, and be ordered by position.
    """
    unit = 10.0 ** (preference.abs().clamp_min(1e-30).log10().floor() - 4)
    small = (preference / unit).round() * unit
    return torch.where(preference.abs() < 0.1, small, preference.round(decimals=5))


def levels(run: SamplingContext, z: Tokens) -> Int64[Tensor, "B L"]:
    """Return the number of remaining edges of each position, 0 at the prompt."""
    return torch.where(run.free, run.process.level_of(z), 0)


def model_time(run: SamplingContext, z: Tokens, expected: Expected) -> Times:
    """Compute the time of each row at which the expected number of remaining edges equals its own,
    (B,).
    """
    times, edges = expected
    mean = levels(run, z).sum(-1) / run.free.sum(-1).clamp_min(1).to(torch.float64)
    above = torch.searchsorted(edges, mean[:, None], right=True).clamp(1, len(times) - 1)
    low, high = edges.gather(1, above - 1)[:, 0], edges.gather(1, above)[:, 0]
    rise = high - low
    share = ((mean - low) / torch.where(rise > 0, rise, 1.0)).clamp(0, 1)
    t = torch.lerp(times[above[:, 0] - 1], times[above[:, 0]], share)
    return torch.where(mean >= edges[:, -1], 1.0, t)
