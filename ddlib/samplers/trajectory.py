"""Recorded path of a sampling call: the states, what was drawn, and how likely it was."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.samplers.base import Observer, SamplingContext, State, at
from ddlib.samplers.control import SamplingCall
from ddlib.samplers.runtime.model import FullContext, Predictions
from ddlib.samplers.state_draws import transition_log_prob
from ddlib.samplers.step_distribution import (
    posterior_log_probs,
    step_divergence,
    step_log_probs,
)
from ddlib.typing import Logits, Times, Tokens
from ddlib.utils.validation import check_count, require


class Step(NamedTuple):
    """Draws of one step at the l positions that the sampler holds."""

    context: FullContext
    """Rest of the model input."""
    z: Tokens
    """(B, l) states before the step."""
    t: Times
    """Times that the network takes."""
    s: Times
    """Times at the end of the step."""
    after: Tokens
    """(B, l) states that the sampler returned."""
    drawn: Bool[Tensor, "B l"]
    """True where the network's distribution was drawn from."""
    force: bool
    """Whether tokens were kept inside their clusters."""
    time: float
    """Time of the grid, on which temperature and truncation depend."""

    def log_probs(self, run: SamplingContext) -> Float64[Tensor, "B l"]:
        """Compute the log-probability of each draw by the network of a call, 0 at others."""
        return step_log_probs(run, self.z, self.t, self.s, self.after, self.drawn, self.force)

    def divergence(self, run: SamplingContext, other: SamplingContext) -> Float64[Tensor, "B l"]:
        """Compute KL(run || other) of the draws by the networks of two calls."""
        return step_divergence(
            run, other, self.z, self.t, self.s, self.after, self.drawn, self.force
        )

    @property
    def columns(self) -> slice:
        """Places of the l positions in the sequence."""
        return slice(self.context.first, self.context.first + self.z.shape[1])


@dataclass(frozen=True, repr=False)
class Trajectory:
    """Path of ``dd.sample(..., record=True)``, which ``dd.log_prob`` evaluates with any network.

    The levels of a ``LevelProcess`` are drawn without the network. Given them, the draws of a step
    are independent, and the probability of the path is the product over all draws (theory section
    22). N is the number of steps in which something was drawn.
    """

    call: SamplingCall
    """The call that made it."""
    steps: tuple[Step, ...]
    log_probs: Float64[Tensor, "N B L"]
    """Log-probability in nats of each draw by the network that made it, 0 at other positions."""
    weight: float = 1.0
    """Factor by which sums over the steps of ``choose`` estimate sums over all steps."""

    @cached_property
    def states(self) -> Int64[Tensor, "n B L"]:
        """(N + 1, B, L) states before each step, and the last ones.

        Positions behind the block of a step hold a number that is not a token; those behind an end
        of text hold what was drawn there, before ``EndOfText`` fills them.
        """
        if not self.steps:
            return self.call.fixed[None]
        last = self.steps[-1]
        before = [step.context.states(step.z) for step in self.steps]
        return torch.stack([*before, last.context.states(last.after)])

    def __repr__(self) -> str:
        steps, rows, length = self.log_probs.shape
        return f"Trajectory({steps} steps, {rows} x {length}, {self.call.sampler!r})"

    @cached_property
    def drawn(self) -> Bool[Tensor, "N B L"]:
        """True where the network's distribution was drawn from."""
        result = torch.zeros(self.log_probs.shape, dtype=torch.bool, device=self.log_probs.device)
        for here, step in zip(result, self.steps, strict=True):
            here[:, step.columns] = step.drawn
        return result

    def choose(self, number: int, generator: torch.Generator | None = None) -> Self:
        """Select steps uniformly without replacement, in their order.

        Sums over their draws, times ``weight``, have the mean of sums over all draws. Functions of
        a sum, such as its exponential, do not.

        Args:
            number: from 1 to N.
            generator: source of randomness, on the CPU.

        Raises:
            TypeError, ValueError: a number that is not an int, or out of range.
        """
        total = len(self.steps)
        check_count("steps", number)
        require(number <= total, f"steps is {number}, must be at most the {total} recorded steps")
        indices = torch.randperm(total, generator=generator)[:number].sort().values
        return replace(
            self,
            steps=tuple(self.steps[k] for k in indices.tolist()),
            log_probs=self.log_probs[indices.to(self.log_probs.device)],
            weight=self.weight * total / number,
        )


def check_trajectory(trajectory: object) -> None:
    """Raise TypeError unless an argument is a recorded path."""
    if not isinstance(trajectory, Trajectory):
        raise TypeError(
            f"trajectory is a {type(trajectory).__name__}, must be the second result of "
            "dd.sample(..., record=True)"
        )


class Recorder(Observer):
    """Observer that records the path of one call, from outputs that the steps draw from."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.log_probs: list[Float64[Tensor, "B l"]] = []
        self._draws: list[tuple[Predictions, Tensor, Tensor, bool]] = []
        self._posterior: tuple[Tensor, Tokens, Tokens] | None = None
        """Terms, states drawn from and drawn states at all positions, in a process without
        levels.
        """

    def note_states(
        self,
        run: SamplingContext,
        predictions: Predictions,
        states: Int64[Tensor, "N"],
        force: bool,
    ) -> None:
        terms = transition_log_prob(predictions, states, force, run.sharpen)
        self._draws.append((predictions, states, terms, force))

    def note_posterior(
        self,
        run: SamplingContext,
        logits: Logits,
        z: Tokens,
        t: Times,
        s: Times,
        after: Tokens,
    ) -> None:
        self._check_single(run, self._posterior is None)
        cavity = run.process.sharpen(logits, z, t, run.sharpen)
        terms = posterior_log_probs(run.process, cavity, z, t, s, after, run.free)
        self._posterior = terms, z, after

    def note_step(self, run: SamplingContext, before: State, after: State, k: int) -> None:
        """Record step ``k``, unless it drew nothing."""
        t = at(run, k).clone()
        force = False
        drawn = run.free
        if self._posterior is not None:
            terms, seen, states = self._posterior
            self._check_seen(run, before.z, seen)
            self._check_kept(run, after.z[drawn], states[drawn])
        else:
            drawn = torch.zeros_like(run.free)
            terms = torch.zeros(drawn.shape, dtype=torch.float64, device=drawn.device)
            for part, states, log_probs, forced in self._draws:
                force = forced
                self._check_seen(run, before.z[part.b, part.i], part.as_states(part.z))
                self._check_kept(run, after.z[part.b, part.i], states)
                self._check_single(run, not bool(drawn[part.b, part.i].any()))
                drawn[part.b, part.i] = True
                terms[part.b, part.i] = log_probs
                # a sampler from jump to jump evaluates the network between the times of the grid
                t[(part.b, part.i)[: t.ndim]] = part.t
        self._draws.clear()
        self._posterior = None
        if not bool(drawn.any()):
            return
        context = run.network.context.without_values()
        time = float(run.times[k])
        step = Step(context, before.z, t, at(run, k + 1), after.z, drawn, force, time)
        self.steps.append(step)
        self.log_probs.append(terms)

    def _check_seen(self, run: SamplingContext, before: Tensor, seen: Tensor) -> None:
        """Raise TypeError if a step draws given other states than those before it."""
        self._check(run, torch.equal(before, seen), "draws given states that it has changed")

    def _check_kept(self, run: SamplingContext, after: Tensor, drawn: Tensor) -> None:
        """Raise TypeError if a step returns another state than it drew."""
        self._check(run, torch.equal(after, drawn), "returns other states than it draws")

    def _check_single(self, run: SamplingContext, single: bool) -> None:
        """Raise TypeError if a step draws a position again."""
        self._check(run, single, "draws a position twice in one step")

    def _check(self, run: SamplingContext, kept: bool, fault: str) -> None:
        if not kept:
            raise TypeError(
                f"{getattr(run, 'sampler', run)!r} {fault}: its guarantees must not state "
                "independent_draws"
            )

    def trajectory(self, call: SamplingCall) -> Trajectory:
        """Return what was recorded."""
        shape = call.free.shape
        result = torch.zeros(len(self.steps), *shape, dtype=torch.float64, device=call.free.device)
        for row, step, log_probs in zip(result, self.steps, self.log_probs, strict=True):
            row[:, step.columns] = log_probs
        return Trajectory(call, tuple(self.steps), result)
