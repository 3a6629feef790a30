"""Sampler wrapper that records every step: the changes of each position, and the network's
probability of each.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ddlib.contrib.step_outputs import StepOutputs, listen
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State
from ddlib.samplers.runtime.model import Predictions
from ddlib.samplers.state_draws import child_log_probs
from ddlib.samplers.wrapper import Transparent
from ddlib.typing import HasLevelWeights, Times, Tokens

OnStep = Callable[[int, Tensor, Tensor], None]

OTHERS = 3
"""Number of the most probable other states that are recorded beside the sampled one."""


class Mark(IntEnum):
    """Kind of change of a position in a step."""

    DOWN = 0
    """The position descended one or more levels."""
    UP = 1
    """The position ascended: its state will be resampled."""
    CHANGED = 2
    """The position changed to another state of the same level."""


class Event(NamedTuple):
    """Change of a position's state in a step."""

    position: int
    state: int
    mark: Mark
    chance: float | None
    """Probability of the state within its level, according to the network; None where it was not
    evaluated.
    """
    others: tuple[tuple[int, float], ...]
    """The most probable states of that level with their probabilities, in descending order."""


class Frame(NamedTuple):
    """Changes of one step."""

    t: float
    calls: int
    """Network calls so far that included the sequence."""
    events: list[Event]


@dataclass
class Film:
    """Denoising trajectory of one sequence."""

    start: list[int]
    """States before the first step."""
    given: list[int]
    """Positions of the prompt."""
    frames: list[Frame] = field(default_factory=list)
    """Changes of each step; one more where the sampler's finalisation changed something."""

    def first(self, length: int) -> "Film":
        """Return the trajectory of the first ``length`` positions only."""
        frames = [
            Frame(t, calls, [one for one in events if one.position < length])
            for t, calls, events in self.frames
        ]
        return Film(self.start[:length], [place for place in self.given if place < length], frames)

    def states(self, frame: int) -> list[int]:
        """Return the states after the given number of frames."""
        states = list(self.start)
        for _, _, events in self.frames[:frame]:
            for event in events:
                states[event.position] = event.state
        return states


class Filmed(Transparent):
    """Wrapper of a sampler that records the first sequences of a batch.

    It draws bitwise the same samples.

    Its ``on_step`` must be that of ``dd.sample``, whose result is passed to ``end``. It causes no
    network calls: it records the outputs of the sampler's calls. A probability is that of the
    network, before temperature, top-p and similar options, and before a force transition. For a
    position that descended it is the distribution over members of its new level given its old
    state; else the distribution of the token, or of its cluster, given all other positions. It is
    not for rules for lengths, which move positions between steps.

    Args:
        sampler: the sampler to record.
        most: number of recorded sequences.
        on_step: is called as by ``dd.sample``.
    """

    def __init__(self, sampler: Sampler, most: int, on_step: OnStep | None = None) -> None:
        self.sampler = sampler
        self.most = most
        self._told = on_step
        self._texts: list[Film] = []
        self._counts = torch.zeros((), dtype=torch.int64)

    @property
    def inner(self) -> Sampler:
        return self.sampler

    @property
    def guarantees(self) -> Guarantees:
        return replace(super().guarantees, supports_fields=False, movable_positions=False)

    @property
    def texts(self) -> list[Film]:
        """The trajectories so far."""
        return self._texts

    def init(self, run: SamplingContext) -> State:
        """Start the whole sequence, or the next block of it: calls continue those before."""
        recorder = StepOutputs(run.free.shape, run.free.device)
        recorder.calls += self._counts
        self._counts = recorder.calls
        self._run = run
        self._heard = recorder
        listen(run.network, self._heard)
        return super().init(run)

    def on_step(self, k: int, t: Tensor, z: Tensor) -> None:
        """Record the states after a step, with the prompt in place.

        Times (B, L) are those of a blockwise pace.
        """
        if self._told is not None:
            self._told(k, t, z)
        z = z[: self.most].clone()
        if k < 0:
            stands = torch.zeros_like(z, dtype=torch.bool) if t.ndim == 1 else t[: self.most] == 0
            stands[:, self._window] = ~self._run.free[: self.most]
            prompted = stands.tolist()
            self._texts = [
                Film(start, [i for i, stands in enumerate(row) if stands])
                for start, row in zip(z.tolist(), prompted, strict=True)
            ]
        else:
            self._keep(t, z)
        self._before = z
        self._t = t
        self._calls = self._heard.calls.clone()

    def end(self, tokens: Tokens) -> list[Film]:
        """Return the trajectories, given the result of ``dd.sample``."""
        tokens = tokens[: self.most]
        if not torch.equal(tokens, self._before) or not torch.equal(self._heard.calls, self._calls):
            self._keep(torch.zeros_like(self._t), tokens)
        return self._texts

    @property
    def _window(self) -> slice:
        """The positions that the sampler draws at present."""
        first = self._run.network.context.first
        return slice(first, first + self._run.free.shape[1])

    def _keep(self, t: Times, z: Tokens) -> None:
        t = t if t.ndim == 1 else t[:, self._window].amax(1)  # a prompt has time 0
        for text, when, calls in zip(
            self._texts, t.tolist(), self._heard.calls.tolist(), strict=False
        ):
            text.frames.append(Frame(when, calls, []))
        for b, event in _events(self._run, self._heard, self._window, self._before, z):
            self._texts[b].frames[-1].events.append(event)
        self._heard.recorded.clear()


def _events(
    run: SamplingContext, recorder: StepOutputs, window: slice, before: Tokens, after: Tokens
) -> Iterator[tuple[int, Event]]:
    """Yield each change, with its sequence; the network is evaluated on the window alone."""
    b, i = (before != after).nonzero().unbind(1)
    state = after[b, i]
    above, level = (run.process.level_of(z)[b, i] for z in (before, after))
    mark = Mark.UP * (level > above).long() + Mark.CHANGED * (level == above).long()
    chance = torch.full((len(b),), torch.nan, dtype=torch.float64, device=b.device)
    which = torch.zeros((len(b), OTHERS), dtype=torch.int64, device=b.device)
    likely = torch.zeros((len(b), OTHERS), dtype=torch.float64, device=b.device)
    inside = (window.start <= i) & (i < window.stop)
    drawn = (inside & (mark != Mark.UP)).nonzero()[
        :, 0
    ]  # an ascending position is noised, whatever the network
    for mine, predictions in recorder.before(b[drawn], i[drawn] - window.start, state[drawn]):
        places = drawn[mine]
        for rows, states, log_probs in _distributions(predictions, state[places]):
            some = places[rows]
            hit = states == state[some][:, None]
            chance[some] = torch.where(hit, log_probs.to(torch.float64).exp(), 0.0).sum(-1)
            best = log_probs.topk(min(OTHERS, log_probs.shape[1]), -1)
            which[some, : best.values.shape[1]] = states.gather(1, best.indices)
            likely[some, : best.values.shape[1]] = best.values.to(torch.float64).exp()
    columns = (b, i, state, mark, chance, which, likely)
    for row, position, now, kind, own, theirs, chances in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        others = tuple((one, p) for one, p in zip(theirs, chances, strict=True) if p > 0)
        yield (
            row,
            Event(position, now, Mark(kind), None if own != own else own, others),
        )  # NaN != NaN


def _distributions(
    predictions: Predictions, state: Int64[Tensor, "N"]
) -> Iterator[tuple[Int64[Tensor, "n"], Int64[Tensor, "n K"], Float[Tensor, "n K"]]]:
    """Yield the distributions from which positions got their states, from the network's outputs
    before.

    Yields:
        The indices of the positions among the N, the states of the level, and their normalised
        log-probabilities.
    """
    process = predictions.network.process
    level, above = (process.level_of(z[:, None])[:, 0] for z in (state, predictions.z))
    # where the level chain depends on the state, the states below one are not all that it can
    # descend to
    own = process.hierarchy is not None and isinstance(process, HasLevelWeights)
    comes_down = level < above if own else torch.zeros_like(level, dtype=torch.bool)
    rows = comes_down.nonzero()[:, 0]
    if len(rows):
        for some, first, which, log_probs in child_log_probs(
            predictions.take(rows), level[rows], False
        ):
            yield rows[some], which + first, log_probs
    for i in level[~comes_down].unique().tolist():
        rows = (~comes_down & (level == i)).nonzero()[:, 0]
        log_probs = (
            predictions.take(rows).token_logits(torch.zeros_like(rows))[:, 0].log_softmax(-1)
        )
        if i > 0:
            if process.hierarchy is None:  # a noise state without members
                continue
            log_probs = process.hierarchy.between(0, i).log_push(log_probs)
        states = torch.arange(log_probs.shape[1], device=log_probs.device) + sum(process.levels[:i])
        yield rows, states.expand(len(rows), -1), log_probs
