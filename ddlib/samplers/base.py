"""Abstract interface of a sampler: from noise to tokens."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.config.part import Part
from ddlib.parameterization.logits import posterior_logits
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.runtime.model import Model, Predictions
from ddlib.samplers.state_draws import Draws, Independent
from ddlib.typing import Logits, Sharpen, Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import Generator, rand
from ddlib.utils.repr import format_part
from ddlib.utils.validation import require


class Observer:
    """Reader of what the steps of a call draw from the network; the base class reads nothing."""

    def note_states(
        self,
        run: "SamplingContext",
        predictions: Predictions,
        states: Int64[Tensor, "N"],
        force: bool,
    ) -> None:
        """Take the network's output at positions that descend, the states that are drawn there, and
        whether tokens are kept inside their clusters.
        """

    def note_posterior(
        self,
        run: "SamplingContext",
        logits: Logits,
        z: Tokens,
        t: Times,
        s: Times,
        after: Tokens,
    ) -> None:
        """Take cavity logits at all positions, and states at s drawn from the posterior, in a
        process without levels.
        """

    def note_step(self, run: "SamplingContext", before: "State", after: "State", k: int) -> None:
        """Take the states before and after step ``k``."""


class State(NamedTuple):
    """State of a sampler between two steps."""

    z: Tokens
    """(B, L) states."""
    t: Times
    """(B,) float64, the time of each sequence; (B, L) along a pace, the time of each position."""
    memo: Any = None
    """Data of the sampler that are carried from step to step."""


@dataclass(frozen=True)
class SamplingContext:
    """Inputs of a sampler in one call of ``sample``; immutable.

    A step evaluates ``network`` at states and times, applies ``sharpen`` to every distribution that
    it draws from, and draws with ``generator`` alone. ``at(run, k)`` is the k-th time of the grid.
    """

    process: ForwardProcess
    """The forward process, whose noise is reversed."""
    network: Model
    """The denoiser, evaluated at some positions, or by ``predict`` at all."""
    sharpen: Sharpen
    """Log-probabilities (..., n) after temperature and truncation; an argument of
    ``process.sample_given_level``.
    """
    times: Tensor
    """(steps + 1,) float64, decreasing from 1 to 0."""
    free: Tensor
    """(B, L) bool, True where a token is to be drawn, False at the prompt and in finished
    sequences.
    """
    generator: Generator
    """Source of all draws, see ``ddlib.utils.random.rand``."""
    path: Callable[[Tensor], Times] | None = None
    """Map from the progress of sequences along their pace, (B,), to times (B, L); None without a
    pace.
    """
    draws: Draws = field(default_factory=Independent)
    """Distribution from which ``draw_states`` draws the states of a step."""
    observer: Observer = field(default_factory=Observer)
    """Reader of the draws."""

    def predict(self, z: Tokens, t: Times) -> Logits:
        """Compute the logits (B, L, V) of the cavity distribution at every position, float32 or
        float64, checked.
        """
        return self.network(z, t)

    @property
    def steps(self) -> int:
        """Number of steps, which bounds the number of network calls."""
        return len(self.times) - 1


@dataclass(frozen=True)
class Guarantees:
    """Properties of a sampler or corrector.

    ``dd.verify`` checks the first ones, and ``sample`` compares the others with what other parts of
    the call need.
    """

    exact_marginals: bool = True
    """True if a single token has its exact distribution after any number of steps, given the
    optimal denoiser; False for Euler steps. A corrector keeps the distribution q_t of a token.
    """
    consistent_joint: bool = True
    """True if the distribution of a sequence converges to the exact one as the number of steps
    grows, given the optimal denoiser; False if dependent tokens are drawn at once at any number of
    steps, or if the least likely tokens are drawn again.
    """
    exact_joint: bool = False
    """True if every step, however large, keeps the joint distribution of a sequence."""
    on_time_grid: bool = True
    """True if z ~ q_t at every time of the grid, given the optimal denoiser of a single token;
    False for steps from jump to jump.
    """
    by_times: bool = True
    """True if the times of the grid matter, False if only their number does, as for
    ``FirstHitting``.
    """
    max_model_calls: int = 1
    """Maximal number of network calls per step."""
    max_finalize_calls: int = 1
    """Maximal number of network calls of ``finalize``."""
    supports_stopping: bool = True
    """True if sequences may be finished early (``Ending``), False if a row represents several
    sequences.
    """
    supports_joint_draws: bool = False
    """True if ``SamplingContext.draws`` draws all tokens and tokens are replaced only by way of
    masks.

    Then a condition on the sequence holds, if each of these draws keeps it.
    """
    forces_transitions: bool = False
    """True if a token is kept inside its cluster as it descends, even where xi < 1 would let it
    leave: states are then not drawn from the distribution of the process.
    """
    supports_step_distribution: bool = False
    """True if a ``typing.GuidedDenoiser`` with a step distribution is supported, by
    ``step_by_guidance``.
    """
    supports_fields: bool = True
    """True if positions may have different alphabets, as in a ``Product``."""
    independent_draws: bool = False
    """True if all that a step draws from the network's distribution are states given the levels
    of a ``LevelProcess``, or z_s given z_t elsewhere, and nothing else that is random reads the
    network. A path then has a probability (``log_prob``).
    """
    keeps_tokens: bool = False
    """True if no step changes a token, in a process in which tokens are not ``replaceable``."""
    movable_positions: bool = False
    """True if positions may be inserted and deleted between steps (``Length``): the memo holds no
    values of positions.
    """
    own_times: bool = False
    """True if all times that ``step`` takes are ``at(run, k)`` and ``at(run, k + 1)``, which may be
    those of each position, (B, L); False if it needs one per sequence, (B,), or another time.
    """


class ReversePart(Part):
    """Base class of samplers and correctors: the processes that they require, and the instances
    that are verified.
    """

    requires: ClassVar[type[ForwardProcess]] = ForwardProcess
    """Class of the supported processes; ``sample`` checks it."""

    instead: ClassVar[str] = ""
    """Alternatives for processes of other classes, for the error message."""

    @property
    def guarantees(self) -> Guarantees:
        """Properties of the part; a subclass with others overrides it."""
        return Guarantees()

    def check(self, process: ForwardProcess) -> None:
        """Raise TypeError unless the process is supported.

        The message has the reason and an alternative.
        """
        others = [
            each for each in process.components if not isinstance(each.process, self.requires)
        ]
        if not others:
            return
        if self.requires is LevelProcess:
            lacking = f"needs a process with levels, {others[0]!r} has none"
        else:
            lacking = f"needs a {self.requires.__name__}, {others[0]!r} is not one"
        raise TypeError(f"{type(self).__name__} {lacking}: {self.instead}")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Return the instances on which a registered class is verified.

        Override if the constructor needs arguments.
        """
        return [cls()]


class Sampler(ReversePart):
    """Base class of samplers, which draw tokens by reversing a process.

    A subclass implements ``step``.

    The loop calls ``init`` once, ``step`` for k = 0..steps-1, and ``finalize``. It restores the
    prompt after each call.
    """

    @property
    def order(self) -> int:
        """Order of convergence: the error falls as steps to the minus ``order``.

        0 without a ``kernel``.
        """
        return 0

    def kernel(
        self,
        process: ForwardProcess,
        predict: Callable[[Tokens, Times], Logits],
        z: Tokens,
        t: Times,
        s: Times,
    ) -> Float64[Tensor, "N N"]:
        """Compute the transition matrix of a step, from sequences at ``t`` (rows) to those at ``s``
        (columns).

        For small state spaces, to measure errors without sampling noise.

        Args:
            process: the forward process.
            predict: ``(z, t) -> logits`` of the cavity distribution.
            z: (N, L) all sequences of states.
            t: (N,) times, all equal.
            s: (N,) earlier times, all equal; 0 for the last step.

        Raises:
            TypeError: the sampler has no such matrix.
        """
        raise TypeError(
            f"{type(self).__name__} has no method that returns the distribution of its step"
        )

    def check_length(self, length: int) -> None:
        """Raise ValueError unless sequences of this length are supported; all are by default."""

    def init(self, run: SamplingContext) -> State:
        """Draw the state at t = 1 from the prior."""
        z = run.process.sample_prior(run.free.shape, run.generator, device=run.free.device)
        return State(z, at(run, 0))

    @abstractmethod
    def step(self, run: SamplingContext, state: State, k: int) -> State:
        """Return the state after step ``k``."""

    def finalize(self, run: SamplingContext, state: State) -> Tokens:
        """Return tokens only. If t = 0 is not noise-free, a last network call draws them from p(x |
        z).
        """
        (z, t, _) = state
        is_token = run.process.level_of(z) == 0
        certain = run.process.likelihood(z, run.process.states_as_tokens(z), t) == 1
        unsure = run.free & ~(is_token & certain)
        if not bool(unsure.any()):
            return z
        u = rand(z.shape, run.generator, z.device)
        result = z.clone()
        for predictions in run.network.at(z, t, unsure):
            process = predictions.network.process
            states = predictions.z[:, None]
            times = predictions.t
            logits = predictions.token_logits(0 * predictions.z)
            possible = (process.token_likelihood(states, times) > 0).any(-1)
            require(
                bool(possible.all()),
                f"{self!r} ended with states at t = {float(t.min()):g} that have probability 0 "
                "given any token: its "
                "steps must move every position to t = 0",
            )
            cavity = process.sharpen(logits, states, times, run.sharpen)
            scores = posterior_logits(process, cavity, states, times)[:, 0]
            tokens = draw_logits(scores, u[predictions.b, predictions.i])
            result[predictions.b, predictions.i] = predictions.as_states(tokens)
        return result

    def time_of(self, run: SamplingContext, state: State) -> Times:
        """Return the times of the sequences after positions were added or removed (``Length``), by
        default the same.

        Args:
            run: the call of ``sample``, with the drawn positions as ``free``.
            state: the state after the change, with the times before it.
        """
        return state.t

    def select_rows(self, state: State, rows: Int64[Tensor, "n"]) -> State:
        """Return the state of selected rows, in the given order and possibly with repetitions.

        ``Particles`` calls it to copy some sequences and drop others. In ``memo``, tensors are
        indexed by row, tuples and lists member by member; numbers and None stay. A subclass with
        other data in the memo, such as a tensor without an axis of rows, overrides this method.

        Args:
            state: of B rows.
            rows: (n,) indices of rows.

        Raises:
            TypeError: a memo with other data.
        """
        return State(state.z[rows], state.t[rows], _select(state.memo, len(state.z), rows))

    def __repr__(self) -> str:
        return format_part(self, Sampler)


def _select(memo: Any, size: int, rows: Tensor) -> Any:
    """Select rows of a memo of ``size`` rows, see ``select_rows``."""
    if memo is None or isinstance(memo, bool | int | float | str):
        return memo
    if isinstance(memo, Tensor) and memo.ndim > 0 and len(memo) == size:
        return memo[rows]
    if isinstance(memo, tuple | list):
        members = [_select(member, size, rows) for member in memo]
        return type(memo)(*members) if hasattr(memo, "_fields") else type(memo)(members)
    what = f"a tensor of shape {tuple(memo.shape)}" if isinstance(memo, Tensor) else repr(memo)
    raise TypeError(
        f"memo holds {what}, must be numbers and tensors of the {size} rows, or tuples of them: "
        "override select_rows"
    )


def level_process(run: SamplingContext) -> LevelProcess:
    """Return the process, typed as a ``LevelProcess``.

    For samplers that require one, as ``sample`` has checked.
    """
    return cast(LevelProcess, run.process)


def at(run: SamplingContext, k: int) -> Times:
    """Return the k-th time of the grid for every sequence, (B,), or along a pace for every
    position, (B, L).
    """
    t = run.times[k].expand(run.free.shape[0]).to(torch.float64)
    return t if run.path is None else run.path(t)


def joint(probs: Tensor, sequences: Tokens) -> Float64[Tensor, "*n N"]:
    """Compute the probability of each sequence if positions are drawn independently, for the
    ``kernel`` of a sampler.

    Args:
        probs: (..., L, S) probabilities of the states of each position.
        sequences: (N, L) sequences of states.

    Returns:
        (..., N) float64.
    """
    result = torch.ones((), dtype=torch.float64, device=probs.device)
    for i in range(sequences.shape[1]):
        result = result * probs[..., i, :].to(torch.float64)[..., sequences[:, i]]
    return result
