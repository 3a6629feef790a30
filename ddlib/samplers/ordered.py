"""Base class of ordered samplers, which choose the positions that descend next."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State, level_process
from ddlib.samplers.runtime.constrained import constrained_log_probs
from ddlib.samplers.runtime.model import Predictions
from ddlib.samplers.runtime.reverse_step import Noise, child_log_probs, draw_states
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_flag, require

_RANDOM_NOISE = "for other processes train on random noise, with ddlib.training_loss"
_GRID = 257
"""Number of times at which the expected level is tabulated; in between it is interpolated."""


class Expected(NamedTuple):
    """Expected number of remaining edges of a position, tabulated over times."""

    times: Float64[Tensor, "n"]
    edges: Float64[Tensor, "n"]


class Turn(NamedTuple):
    """Plan of a step: the positions that descend, before their states are drawn."""

    predictions: Iterable[Predictions]
    """Model output at the positions that descend; to be iterated once."""
    target: Int64[Tensor, "B L"]
    """Level of every position after the step."""
    preference: Float64[Tensor, "B L"]
    """Scores by which positions are chosen, highest first, and equal ones in order of position."""


class OrderedSampler(Sampler):
    """Base class: descends one hierarchy edge per step, at positions ranked by a score of their
    child distributions.

    In a process with levels neither these distributions nor the optimal model output depend on the
    time, given the states (theory section 10). A step may thus choose the positions that descend to
    one of their children, if it chooses *before* it draws: a choice among drawn children would be
    biased towards the likely ones. A subclass computes a score of each distribution and selects
    among the best. In the last step all remaining positions become tokens at once.

    The network is evaluated at all positions that are not tokens yet, or, if the choice does not
    depend on the distributions, at the chosen ones only. Its time input is the time at which the
    expected number of remaining edges equals the actual one. An order without noise has an exact
    likelihood, ``ddlib.likelihood``.

    Args:
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.
    """

    requires = LevelProcess
    instead = "use Psi, which has no order"

    def __init__(self, force_transition: bool = False) -> None:
        self.force_transition = check_flag("force_transition", force_transition)

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(on_time_grid=False, by_times=False, supports_constraint=True)

    @property
    def deterministic(self) -> bool:
        """True if the choice is a function of the states.

        a subclass that overrides ``noise`` overrides it too.
        """
        return not defined_below(self, OrderedSampler, "noise")

    @property
    def replaces_tokens(self) -> bool:
        """True if tokens may be replaced after they are drawn.

        Sequences then have no likelihood in closed form.
        """
        return False

    @property
    def uses_predictions(self) -> bool:
        """True if the choice depends on the child distributions.

        False saves evaluations at other positions.
        """
        return True

    def confidence(self, log_probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
        """Compute the scores of child distributions from their normalised log-probabilities.

        Positions with the highest scores descend first, those with equal scores in order of
        position. By default all scores are equal; a sampler that never needs them states False in
        ``uses_predictions``.
        """
        return log_probs.new_zeros(len(log_probs))

    def confidence_of(self, probs: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
        """Compute ``confidence`` from probabilities, which the loss has.

        Override it where no logarithm is needed.
        """
        return self.confidence(finite_log(probs))

    @abstractmethod
    def select(
        self, score: Float64[Tensor, "B L"], level: Int64[Tensor, "B L"]
    ) -> Bool[Tensor, "B L"]:
        """Select the positions that descend, with each row sorted by preference.

        Entries at level 0 are ignored.

        Args:
            score: (B, L) in descending order of preference.
            level: (B, L), 0 at tokens and at the prompt, which come last.
        """

    def noise(self, run: SamplingContext, z: Tokens) -> Float64[Tensor, "B L"]:
        """Draw the noise that is added to the scores before positions are sorted; 0 by default."""
        return torch.zeros(z.shape, dtype=torch.float64, device=z.device)

    def priority(self, z: Tokens) -> Float64[Tensor, "B L"]:
        """Return scores of the positions themselves, which are added before positions are sorted.

        0 by default.
        """
        return torch.zeros(z.shape, dtype=torch.float64, device=z.device)

    def choose(
        self,
        score: Float64[Tensor, "B L"],
        level: Int64[Tensor, "B L"],
        steps: int,
        noise: Float64[Tensor, "B L"] | float = 0.0,
        least: Int64[Tensor, "B 1"] | None = None,
    ) -> Bool[Tensor, "B L"]:
        """Choose the positions that descend an edge, row by row; deterministic without noise.

        Args:
            score: (B, L) scores of the child distributions, highest first; scores that are equal
                after rounding to five digits are ordered by position.
            level: (B, L), 0 at tokens and at the prompt.
            steps: number of remaining steps, this one included; at least an even split of the edges
                over them descends.
            noise: (B, L), noise and priority, added to the scores for sorting.
            least: (B, 1) minimal number of positions, in place of an even split.

        Returns:
            (B, L) bool.
        """
        preference = _rounded(score + noise).masked_fill(level == 0, -torch.inf)
        order = preference.sort(dim=-1, descending=True, stable=True).indices
        if least is None:
            least = (-(-level.sum(-1, keepdim=True) // steps)).clamp_min(1)
        chosen = torch.arange(level.shape[1], device=level.device) < least
        chosen = chosen | self.select(score.gather(1, order), level.gather(1, order))
        return torch.zeros_like(chosen).scatter(1, order, chosen) & (level > 0)

    def num_to_unmask(
        self, run: SamplingContext, k: int, left: Int64[Tensor, "B 1"]
    ) -> Int64[Tensor, "B 1"] | None:
        """Return the minimal number of descents per row in step ``k``, of ``left`` edges.

        None for an even split.
        """
        return None

    def init(self, run: SamplingContext) -> State:
        """Draw the state at t = 1; the memo holds the table of expected edges for
        ``model_time``.
        """
        process = level_process(run)
        times = torch.linspace(0, 1, _GRID, dtype=torch.float64, device=run.times.device)
        chances = process.level_transition(torch.zeros_like(times), times)
        edges = chances[:, 0] @ torch.arange(
            len(process.levels), dtype=torch.float64, device=times.device
        )
        state = super().init(run)
        return State(state.z, state.t, Expected(times, edges.cummax(0).values))

    def plan_step(
        self, run: SamplingContext, state: State, k: int, group: int | None = None
    ) -> Turn:
        """Choose the positions that descend in step ``k`` and their levels.

        Used for sampling and for likelihoods.

        Args:
            run: the call of ``sample``.
            state: the present state.
            k: number of the step.
            group: minimal number of positions per row, in place of that of ``num_to_unmask``.
        """
        z = state.z
        steps = run.steps - k
        level = levels(run, state.z)
        noise = self.noise(
            run, z
        )  # drawn at all positions, so that a sequence's noise does not depend on its states
        noise = noise + self.priority(z)
        score = torch.zeros_like(noise)
        chosen = level > 0
        left = level.sum(-1, keepdim=True)
        if group is not None:
            least: Tensor | None = torch.full_like(left, group)
        else:
            least = self.num_to_unmask(run, k, left) if steps > 1 else None
        options = {} if least is None else {"least": least}
        if steps > 1 and not self.uses_predictions:
            chosen = self.choose(score, level, steps, noise, **options)
        predictions = list(run.network.at(z, state.t, chosen))
        if steps > 1 and self.uses_predictions:
            if run.constraint is None:
                for part in predictions:
                    score[part.b, part.i] = self.scores(run, part, level)
            else:
                for rows, columns, log_probs in constrained_log_probs(
                    run, predictions, z, level - 1, self.force_transition
                ):
                    score[rows, columns] = self.confidence(log_probs).to(torch.float64)
            chosen = self.choose(score, level, steps, noise, **options)
        target = torch.where(chosen, level - 1 if steps > 1 else 0, run.process.level_of(z))
        used = (
            part.take(chosen[part.b, part.i])
            for part in predictions
            if bool(chosen[part.b, part.i].any())
        )
        return Turn(used, target, _rounded(score + noise))

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        predictions, target, _ = self.plan_step(run, state, k)
        noise = Noise.draw(run, self.force_transition, single=run.steps - k > 1)
        z = draw_states(run, predictions, state.z, target, noise, self.force_transition)
        return State(z, model_time(run, z, state.memo), state.memo)

    def time_of(self, run: SamplingContext, state: State) -> Times:
        return model_time(run, state.z, state.memo)

    def select_rows(self, state: State, rows: Int64[Tensor, "n"]) -> State:
        """Return the state of selected rows; the memo has no axis of rows."""
        return state._replace(z=state.z[rows], t=state.t[rows])

    def scores(
        self, run: SamplingContext, part: Predictions, level: Int64[Tensor, "B L"]
    ) -> Float64[Tensor, "N"]:
        """Compute the scores of the child distributions at N positions, given the remaining edges
        of all, (B, L).
        """
        score = torch.zeros(len(part.b), dtype=torch.float64, device=part.b.device)
        for rows, _, _, log_probs in child_log_probs(
            run, part, level[part.b, part.i] - 1, self.force_transition
        ):
            score[rows] = self.confidence(log_probs).to(torch.float64)
        return score


def _rounded(preference: Float64[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
    """Round scores to five digits, of those below 0.1 five significant ones.

    Equal states have equal scores up to the network's rounding errors, which depend on the batch.
    Scores of a network that is hardly trained are small: with five decimals many of them would be
    equal, and be ordered by position.
    """
    unit = 10.0 ** (preference.abs().clamp_min(1e-30).log10().floor() - 4)
    small = (preference / unit).round() * unit
    return torch.where(preference.abs() < 0.1, small, preference.round(decimals=5))


def finite_log(probs: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
    """Return finite log-probabilities.

    Probabilities that are rounded to 0 are set to the smallest normal number.
    """
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def defined_below(part: object, base: type, method: str) -> bool:
    """Return whether a subclass of ``base`` overrides a method, so that attributes that describe it
    may be wrong.
    """
    mro = type(part).__mro__
    return any(method in vars(cls) for cls in mro[: mro.index(base)])


def levels(run: SamplingContext, z: Tokens) -> Int64[Tensor, "B L"]:
    """Return the number of remaining edges of each position, 0 at the prompt."""
    return torch.where(run.free, run.process.level_of(z), 0)


def model_time(run: SamplingContext, z: Tokens, expected: Expected) -> Times:
    """Compute the time of each row at which the expected number of remaining edges equals its own,
    (B,).
    """
    times, edges = expected
    mean = levels(run, z).sum(-1) / run.free.sum(-1).clamp_min(1).to(torch.float64)
    above = torch.searchsorted(edges, mean, right=True).clamp(1, len(times) - 1)
    rise = edges[above] - edges[above - 1]
    share = ((mean - edges[above - 1]) / torch.where(rise > 0, rise, 1.0)).clamp(0, 1)
    t = torch.lerp(times[above - 1], times[above], share)
    return torch.where(mean >= edges[-1], 1.0, t)


def check_order(process: ForwardProcess, order: Sampler) -> None:
    """Raise unless rows of the process can descend in this order.

    The process starts at the mask alone.

    Raises:
        TypeError: a sampler without an order; a process without levels.
        ValueError: a process that does not start at the mask, or whose edges act in windows of
            time; an order whose choice depends on a time grid, or that edits tokens.
    """
    if not isinstance(order, OrderedSampler):
        raise TypeError(
            f"order is {order!r}, must be a sampler that chooses the next position, such as "
            "Confidence() or "
            f"LeftToRight(); {_RANDOM_NOISE}"
        )
    if not isinstance(process, LevelProcess):
        raise TypeError(
            f"an order needs a process with levels, {process!r} has none; {_RANDOM_NOISE}"
        )
    require(
        process.levels[-1] == 1 and process.exact_ends,
        f"an order needs a process with only masks at t = 1, {process!r} has others; "
        f"{_RANDOM_NOISE}",
    )
    require(
        all(schedule.support == (0, 1) for schedule in process.schedules),
        f"an order needs edges that act at all times, {process!r} has windows, where states of two "
        "stages have no loss "
        f"at one time; {_RANDOM_NOISE}",
    )
    require(
        not order.replaces_tokens,
        f"order is {order!r}, must keep drawn tokens: edit is only for sampling, omit it",
    )
    require(
        not order.guarantees.by_times,
        f"order is {order!r}, must choose without a time grid, which training does not have: omit "
        "per_step",
    )
