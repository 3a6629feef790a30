"""A sampler whose every step is kept: what became of each position, and the chance that the network gave to it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ddlib.samplers import Sampler, SamplingContext, State
from ddlib.samplers.runtime.model import Predictions
from ddlib.samplers.runtime.reverse_step import child_log_probs
from ddlib.typing import HasLevelWeights, Times, Tokens
from recipes.visualization.listening import Heard, listen

OnStep = Callable[[int, Tensor, Tensor], None]

OTHERS = 3
"""How many of the likeliest states are kept beside the one that was drawn."""


class Mark(IntEnum):
    """What happened to a position in a step."""

    DOWN = 0
    """It came down a level or more."""
    UP = 1
    """It went up: what it was is to be drawn anew."""
    CHANGED = 2
    """Another state of the same level took its place."""


class Event(NamedTuple):
    """A position that is in another state after a step than before."""

    position: int
    state: int
    mark: Mark
    chance: float | None
    """That of the state among those of its level, as the network had it; None where it was not asked."""
    others: tuple[tuple[int, float], ...]
    """The likeliest states of that level with their chances, the likeliest first."""


class Frame(NamedTuple):
    """A step."""

    t: float
    calls: int
    """Network calls so far in which the text took part."""
    events: list[Event]


@dataclass
class Text:
    """One text on its way from noise."""

    start: list[int]
    """Its states before the first step."""
    given: list[int]
    """Positions of the prompt."""
    frames: list[Frame] = field(default_factory=list)
    """What changed in each step; one more where the sampler's end changed something."""

    def first(self, length: int) -> "Text":
        """The same without positions behind the first so many."""
        frames = [Frame(t, calls, [one for one in events if one.position < length]) for t, calls, events in self.frames]
        return Text(self.start[:length], [place for place in self.given if place < length], frames)

    def states(self, frame: int) -> list[int]:
        """The states after so many frames."""
        states = list(self.start)
        for _, _, events in self.frames[:frame]:
            for event in events:
                states[event.position] = event.state
        return states


class Filmed(Sampler):
    """Another sampler, and what became of the first texts of a batch; draws what that one draws, to the bit.

    Its ``on_step`` must be that of ``dd.sample``, whose words are handed to ``end``. Nothing more is asked of the
    network: its answers are heard on their way. A chance is that of the network, before temperature, top-p and their
    like, and before a force transition: of a position that came down, the law of the members of the level it landed in
    given the state it came from; else the law of a word, or of its cluster, given all other positions.

    Args:
        sampler: what draws.
        most: texts that are kept.
        on_step: is called as ``dd.sample`` would.
    """

    def __init__(self, sampler: Sampler, most: int, on_step: OnStep | None = None) -> None:
        for name in Sampler.__annotations__:  # what a sampler says of itself
            setattr(self, name, getattr(sampler, name))
        self.sampler, self.most = sampler, most
        self._told = on_step
        self._texts: list[Text] = []
        self._heard: Heard | None = None

    @property
    def supports_step_distribution(self) -> bool:
        return self.sampler.supports_step_distribution

    def init(self, run: SamplingContext) -> State:
        """Of the whole text, or of the next block of it: calls go on from those before."""
        heard = Heard(run.free.shape, run.free.device)
        if self._heard is not None:
            heard.calls += self._heard.calls
        self._run, self._heard = run, heard
        listen(run.network, self._heard)
        return self.sampler.init(run)

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        return self.sampler.step(run, state, k)

    def finalize(self, run: SamplingContext, state: State) -> Tokens:
        return self.sampler.finalize(run, state)

    def on_step(self, k: int, t: Tensor, z: Tensor) -> None:
        """Keeps the states after a step, the prompt in its place; times (B, L) are those of a text by blocks."""
        if self._told is not None:
            self._told(k, t, z)
        z = z[: self.most].clone()
        if k < 0:
            stands = torch.zeros_like(z, dtype=torch.bool) if t.ndim == 1 else t[: self.most] == 0
            stands[:, self._window] = ~self._run.free[: self.most]
            given = stands.tolist()
            self._texts = [
                Text(start, [i for i, stands in enumerate(row) if stands])
                for start, row in zip(z.tolist(), given, strict=True)
            ]
        else:
            self._keep(t, z)
        self._before, self._t, self._calls = z, t, self._heard.calls.clone()

    def end(self, words: Tokens) -> list[Text]:
        """The texts, given what ``dd.sample`` returned."""
        words = words[: self.most]
        if not torch.equal(words, self._before) or not torch.equal(self._heard.calls, self._calls):
            self._keep(torch.zeros_like(self._t), words)
        return self._texts

    def __repr__(self) -> str:
        return repr(self.sampler)

    @property
    def _window(self) -> slice:
        """The positions that the sampler draws at present."""
        first = self._run.network.sight.first
        return slice(first, first + self._run.free.shape[1])

    def _keep(self, t: Times, z: Tokens) -> None:
        t = t if t.ndim == 1 else t[:, self._window.start]
        for text, when, calls in zip(self._texts, t.tolist(), self._heard.calls.tolist(), strict=False):
            text.frames.append(Frame(when, calls, []))
        for b, event in _events(self._run, self._heard, self._window, self._before, z):
            self._texts[b].frames[-1].events.append(event)
        self._heard.said.clear()


def _events(
    run: SamplingContext, heard: Heard, window: slice, before: Tokens, after: Tokens
) -> Iterator[tuple[int, Event]]:
    """What changed, and in which text; the network was asked about the window alone."""
    b, i = (before != after).nonzero().unbind(1)
    state = after[b, i]
    above, level = (run.process.level_of(z)[b, i] for z in (before, after))
    mark = Mark.UP * (level > above).long() + Mark.CHANGED * (level == above).long()
    chance = torch.full((len(b),), torch.nan, dtype=torch.float64, device=b.device)
    which = torch.zeros((len(b), OTHERS), dtype=torch.int64, device=b.device)
    likely = torch.zeros((len(b), OTHERS), dtype=torch.float64, device=b.device)
    asked = (window.start <= i) & (i < window.stop)
    drawn = (asked & (mark != Mark.UP)).nonzero()[:, 0]  # who goes up is noised, whatever the network said besides
    for mine, said in heard.before(b[drawn], i[drawn] - window.start, state[drawn]):
        places = drawn[mine]
        for rows, states, law in _laws(run, said, state[places]):
            some = places[rows]
            hit = states == state[some][:, None]
            chance[some] = torch.where(hit, law.to(torch.float64).exp(), 0.0).sum(-1)
            best = law.topk(min(OTHERS, law.shape[1]), -1)
            which[some, : best.values.shape[1]] = states.gather(1, best.indices)
            likely[some, : best.values.shape[1]] = best.values.to(torch.float64).exp()
    columns = (b, i, state, mark, chance, which, likely)
    for row, position, now, kind, own, theirs, chances in zip(*(column.tolist() for column in columns), strict=True):
        others = tuple((one, p) for one, p in zip(theirs, chances, strict=True) if p > 0)
        yield row, Event(position, now, Mark(kind), None if own != own else own, others)  # NaN is not itself


def _laws(
    run: SamplingContext, said: Predictions, state: Int64[Tensor, "N"]
) -> Iterator[tuple[Int64[Tensor, "n"], Int64[Tensor, "n K"], Float[Tensor, "n K"]]]:
    """The laws by which positions got into their states, by what the network said of them before.

    Yields:
        Which of the N, the states of the level, and their log-law, normalised.
    """
    process = run.process
    level, above = (process.level_of(z[:, None])[:, 0] for z in (state, said.z))
    # where levels do not move on their own, what is below a state is not all that it may come down to
    own = process.hierarchy is not None and isinstance(process, HasLevelWeights)
    comes_down = level < above if own else torch.zeros_like(level, dtype=torch.bool)
    rows = comes_down.nonzero()[:, 0]
    if len(rows):
        by = replace(run, predict=said.network)
        for some, first, which, law in child_log_probs(by, said.take(rows), level[rows], False):
            yield rows[some], which + first, law
    for i in level[~comes_down].unique().tolist():
        rows = (~comes_down & (level == i)).nonzero()[:, 0]
        law = said.take(rows).words(torch.zeros_like(rows))[:, 0].log_softmax(-1)
        if i > 0 and process.hierarchy is None:  # a state without words: noise
            continue
        if i > 0:
            law = process.hierarchy.between(0, i).log_push(law)
        states = torch.arange(law.shape[1], device=law.device) + sum(process.levels[:i])
        yield rows, states.expand(len(rows), -1), law
