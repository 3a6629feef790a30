"""What samplers share that choose which positions come down next."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.processes import LevelProcess
from ddlib.samplers.base import Sampler, SamplingContext, State, level_process
from ddlib.samplers.runtime.model import Predictions
from ddlib.samplers.runtime.reverse_step import apply_predictions, child_log_probs
from ddlib.typing import Times, Tokens
from ddlib.utils.renamed import Renamed

_GRID = 257
"""Points at which the expected level is known; in between it is interpolated."""


class Expected(NamedTuple):
    """How many edges a position has left, on average, by the time."""

    times: Float64[Tensor, "n"]
    edges: Float64[Tensor, "n"]


class Turn(NamedTuple):
    """What is settled in a step before anything is drawn."""

    said: Iterable[Predictions]
    """What the network says at the positions that go, to be gone through once."""
    target: Int64[Tensor, "B L"]
    """The level of every position after the step."""


class OrderedSampler(Sampler):
    """One edge of the hierarchy at a time, and the laws of the children say whose turn it is.

    In a process with levels neither these laws nor what the network should say depend on the time, given the states
    (theory section 10). So a step may choose which positions go down to one of their children next, as long as it
    chooses *before* it draws: who chooses among drawn children favours the likely ones. A leaf gives each law a score
    and says how many of the best go. On the last step all that is left lands on words at once.

    The network is asked about all positions that are no words yet, or only about those that go where the laws have no
    say in the choice, and is told the time at which as many edges are left on average. An order without noise has an
    exact likelihood, ``ddlib.likelihood``.

    Args:
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.
    """

    requires, instead = LevelProcess, "Psi serves it, in no order"
    on_time_grid = by_times = False
    sure, wanted, looks = Renamed("confidence"), Renamed("select"), Renamed("uses_predictions")
    quota, turn = Renamed("num_to_unmask"), Renamed("plan_step")

    def __init__(self, force_transition: bool = False) -> None:
        self.force_transition = force_transition

    @property
    def deterministic(self) -> bool:
        """Whether the choice is a function of the states: unless a leaf that has noise says so, of one without."""
        return type(self).noise is OrderedSampler.noise

    @property
    def uses_predictions(self) -> bool:
        """Whether laws have a say in the choice."""
        return type(self).confidence is not OrderedSampler.confidence

    def confidence(self, law: Float[Tensor, "n K"]) -> Float[Tensor, "n"]:
        """The score of normalised log-laws of children; positions with the highest go first, equals by position.

        Not asked of a leaf that leaves it as it is: there all are equal.
        """
        return law.new_zeros(len(law))

    @abstractmethod
    def select(self, score: Float64[Tensor, "B L"], level: Int64[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
        """Whether positions go, each row sorted by preference; of words, which come last, the answer has no part.

        Args:
            score: (B, L).
            level: (B, L), 0 at words and at the prompt.
        """

    def noise(self, run: SamplingContext, z: Tokens) -> Float64[Tensor, "B L"]:
        """What is added to the scores before positions are sorted by them."""
        return torch.zeros(z.shape, dtype=torch.float64, device=z.device)

    def choose(
        self,
        score: Float64[Tensor, "B L"],
        level: Int64[Tensor, "B L"],
        steps: int,
        noise: Float64[Tensor, "B L"] | float = 0.0,
        least: Int64[Tensor, "B 1"] | None = None,
    ) -> Bool[Tensor, "B L"]:
        """Which positions go down an edge: row by row, and without noise a function of the states and laws alone.

        Args:
            score: (B, L) of the laws, highest first; those that agree to five digits go by position.
            level: (B, L), 0 at words and at the prompt.
            steps: how many are left, this one included; enough go each time for the rest to be split evenly.
            noise: (B, L), added to the scores by which positions are sorted.
            least: (B, 1) how many go at least, in the place of an even split.
        """
        # masks alone are all alike: without rounding the network's own, another in every batch, would choose among them
        preference = (score + noise).round(decimals=5).masked_fill(level == 0, -torch.inf)
        order = preference.sort(dim=-1, descending=True, stable=True).indices
        if least is None:
            least = (-(-level.sum(-1, keepdim=True) // steps)).clamp_min(1)
        go = torch.arange(level.shape[1], device=level.device) < least
        go = go | self.select(score.gather(1, order), level.gather(1, order))
        return torch.zeros_like(go).scatter(1, order, go) & (level > 0)

    def num_to_unmask(self, run: SamplingContext, k: int, left: Int64[Tensor, "B 1"]) -> Int64[Tensor, "B 1"] | None:
        """How many go at least in step ``k``, of those that a row has left; None for an even split."""
        return None

    def init(self, run: SamplingContext) -> State:
        """The state at t = 1, with what the time is told by as the memo, once it is known that there are levels."""
        process, times = level_process(run), torch.linspace(0, 1, _GRID, dtype=torch.float64, device=run.times.device)
        chances = process.level_transition(torch.zeros_like(times), times)
        edges = chances[:, 0] @ torch.arange(len(process.levels), dtype=torch.float64, device=times.device)
        state = super().init(run)
        return State(state.z, state.t, Expected(times, edges.cummax(0).values))

    def plan_step(self, run: SamplingContext, state: State, k: int) -> Turn:
        """Who goes down in step ``k``, and how far: what drawing a text and reading one have in common."""
        z, steps, level = state.z, run.steps - k, levels(run, state.z)
        noise = self.noise(run, z)  # drawn for all, so that a text's noise is its own
        score, going = torch.zeros_like(noise), level > 0
        least = self.num_to_unmask(run, k, level.sum(-1, keepdim=True)) if steps > 1 else None
        counted = {} if least is None else {"least": least}
        if steps > 1 and not self.uses_predictions:
            going = self.choose(score, level, steps, noise, **counted)
        said = list(run.network.at(z, state.t, going))
        if steps > 1 and self.uses_predictions:
            for some in said:
                score[some.b, some.i] = self._scores(run, some, level)
            going = self.choose(score, level, steps, noise, **counted)
        target = torch.where(going, level - 1 if steps > 1 else 0, run.process.level_of(z))
        chosen = (some.take(going[some.b, some.i]) for some in said if bool(going[some.b, some.i].any()))
        return Turn(chosen, target)

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        said, target = self.plan_step(run, state, k)
        single = run.steps - k > 1
        z = apply_predictions(
            run, said, state.z, torch.zeros_like(state.t), target, self.force_transition, single=single
        )
        return State(z, model_time(run, z, state.memo), state.memo)

    def select_rows(self, state: State, rows: Int64[Tensor, "n"]) -> State:
        """The memo is of no row: it tells the time to all."""
        return state._replace(z=state.z[rows], t=state.t[rows])

    def _scores(self, run: SamplingContext, said: Predictions, level: Int64[Tensor, "B L"]) -> Float64[Tensor, "N"]:
        score = torch.zeros(len(said.b), dtype=torch.float64, device=said.b.device)
        for rows, _, _, law in child_log_probs(run, said, level[said.b, said.i] - 1, self.force_transition):
            score[rows] = self.confidence(law).to(torch.float64)
        return score


def levels(run: SamplingContext, z: Tokens) -> Int64[Tensor, "B L"]:
    """How many edges each position has to go down, none where the prompt stands."""
    return torch.where(run.free, run.process.level_of(z), 0)


def model_time(run: SamplingContext, z: Tokens, expected: Expected) -> Times:
    """The time of each row at which as many edges are left on average as it has left, (B,)."""
    times, edges = expected
    mean = levels(run, z).sum(-1) / run.free.sum(-1).clamp_min(1).to(torch.float64)
    above = torch.searchsorted(edges, mean, right=True).clamp(1, len(times) - 1)
    rise = edges[above] - edges[above - 1]
    share = ((mean - edges[above - 1]) / torch.where(rise > 0, rise, 1.0)).clamp(0, 1)
    t = torch.lerp(times[above - 1], times[above], share)
    return torch.where(mean >= edges[-1], 1.0, t)
