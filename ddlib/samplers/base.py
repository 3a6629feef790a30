"""The contract of a sampler: from noise to words."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.arguments import Part
from ddlib.parameterization.logits import posterior_logits
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.runtime.model import ModelWrapper
from ddlib.typing import Logits, Sharpen, Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import Generator, rand
from ddlib.utils.renamed import Renamed
from ddlib.utils.repr import shown
from ddlib.utils.validation import require


class State(NamedTuple):
    """Where a sampler stands between two steps."""

    z: Tokens
    """(B, L) states."""
    t: Times
    """(B,) float64, the time of each sequence; (B, L) of each position, where a pace says so."""
    memo: Any = None
    """Whatever the sampler carries from step to step."""


@dataclass(frozen=True)
class SamplingContext:
    """What one call of ``sample`` hands to its sampler; never changed by it."""

    process: ForwardProcess
    predict: Callable[[Tokens, Times], Logits]
    """``(z, t) -> logits`` of the cavity law, float32 or float64, checked; at every position."""
    sharpen: Sharpen
    """Temperature and top-p, to be handed to ``process.sample_given_level``."""
    times: Tensor
    """(steps + 1,) float64, decreasing from 1 to 0."""
    free: Tensor
    """(B, L) bool, True where a word is to be drawn; elsewhere the prompt stands."""
    generator: Generator
    path: Callable[[Tensor], Times] | None = None
    """From where on its path each sequence is, (B,), to the times of its positions; None where they are one."""

    @property
    def network(self) -> ModelWrapper:
        """``predict``, to be asked about some positions only."""
        return self.predict if isinstance(self.predict, ModelWrapper) else ModelWrapper(self.process, self.predict)

    @property
    def steps(self) -> int:
        """Number of steps, which bounds the number of network calls."""
        return len(self.times) - 1


class Sampler(Part):
    """Draws words by running a process backwards. A leaf is one file and says how to step.

    The loop calls ``init`` once, ``step`` for k = 0..steps-1, putting the prompt back after each, and ``finalize``.
    """

    requires: ClassVar[type[ForwardProcess]] = ForwardProcess  # type: ignore[type-abstract]
    """Class of the processes that it serves; ``sample`` checks it."""

    instead: ClassVar[str] = ""
    """Samplers that serve processes of other classes, for the message."""

    exact_marginals: bool = True
    """Whether one word, given the best denoiser, follows its law after any number of steps; Euler steps err."""

    on_time_grid: bool = True
    """Whether z follows q_t at every time of the grid, given the best denoiser of one word; not from event to event."""

    by_times: bool = True
    """Whether the times of the grid matter; else their number alone, as where steps go from event to event."""

    consistent_joint: bool = True
    """Whether a text, given the best denoiser, follows its law as the steps grow many; not where several dependent
    words are drawn at once however many steps there are, or where what is believed least is drawn again."""

    max_model_calls: int = 1
    """Network calls of a step, at most."""

    supports_stopping: bool = True
    """Whether texts may be finished early (``Ending``): not where the row that is shown stands for several."""

    max_finalize_calls: int = 1
    """Network calls of ``finalize``, at most."""

    own_times: bool = False
    """Whether its step takes each position from its own time to its own earlier one, (B, L); else only (B,)."""

    @property
    def order(self) -> int | None:
        """How fast the error falls: as steps to the minus ``order``; None for samplers without a ``kernel``."""
        return None

    @property
    def supports_step_distribution(self) -> bool:
        """Whether it draws z_s by ``guided_step`` where the denoiser tells its law (``typing.GuidedDenoiser``)."""
        return False

    def kernel(
        self, process: ForwardProcess, predict: Callable[[Tokens, Times], Logits], texts: Tokens, t: Times, s: Times
    ) -> Float64[Tensor, "N N"]:
        """The law of a step: the probability of each text of states at ``s`` (columns) given each at ``t`` (rows).

        For small state spaces, to measure errors without drawing.

        Args:
            process: the forward process.
            predict: ``(z, t) -> logits`` of the cavity law.
            texts: (N, L) every text of states.
            t: (N,) times, all equal.
            s: (N,) the same of an earlier one; 0 is the last step.

        Raises:
            TypeError: this sampler does not tell.
        """
        raise TypeError(f"{type(self).__name__} does not tell the law of its step")

    def check(self, process: ForwardProcess) -> None:
        """Raise TypeError unless the process is one that this sampler serves."""
        if not isinstance(process, self.requires):
            raise TypeError(f"{type(self).__name__} needs a process with levels, {process!r} has none: {self.instead}")

    def init(self, run: SamplingContext) -> State:
        """The state at t = 1: a draw from the prior."""
        z = run.process.sample_prior(run.free.shape, run.generator, device=run.free.device)
        return State(z, at(run, 0))

    @abstractmethod
    def step(self, run: SamplingContext, state: State, k: int) -> State:
        """The state after step ``k``."""

    def finalize(self, run: SamplingContext, state: State) -> Tokens:
        """Words only. Where the clean end is not exact, a last network call draws them from p(x | z)."""
        process, (z, t, _) = run.process, state
        words = z.clamp_max(process.vocab_size - 1)
        unsure = run.free & ~((z < process.vocab_size) & (process.likelihood(words, words, t) == 1))
        if not bool(unsure.any()):
            return z
        u, result = rand(z.shape, run.generator, z.device), z.clone()
        for said in run.network.at(z, t, unsure):
            here, now, logits = said.z[:, None], said.t, said.words(torch.zeros_like(said.z))
            possible = (process.token_likelihood(here, now) > 0).any(-1)
            require(
                bool(possible.all()),
                f"{self!r} ended with states at t = {float(t.min()):g} to which no word leads: "
                "its steps must take every position along as time runs to 0",
            )
            scores = run.sharpen(posterior_logits(process, logits, here, now))
            result[said.b, said.i] = draw_logits(scores[:, 0], u[said.b, said.i])
        return result

    def select_rows(self, state: State, rows: Int64[Tensor, "n"]) -> State:
        """The state of some rows, in this order, each as often as it is named.

        ``Particles`` asks, which copies texts and drops others. Of ``memo`` tensors are taken row by row, tuples and
        lists member by member; numbers and None stay. A leaf that remembers something else, or a tensor that is not of
        the rows, overrides this.

        Args:
            state: of B rows.
            rows: (n,) which of them.

        Raises:
            TypeError: a memo that this rule has no answer for.
        """
        return State(state.z[rows], state.t[rows], _picked(state.memo, len(state.z), rows))

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Objects on which a registered class is verified; override where the constructor needs arguments."""
        return [cls()]

    def __repr__(self) -> str:
        return shown(self, Sampler)

    exact_word, exact_text = Renamed("exact_marginals"), Renamed("consistent_joint")
    on_grid, calls, end_calls = Renamed("on_time_grid"), Renamed("max_model_calls"), Renamed("max_finalize_calls")
    ends, by_steps, pick = Renamed("supports_stopping"), Renamed("supports_step_distribution"), Renamed("select_rows")


def _picked(memo: Any, size: int, rows: Tensor) -> Any:
    """What ``select_rows`` makes of a memo of ``size`` rows."""
    if memo is None or isinstance(memo, bool | int | float | str):
        return memo
    if isinstance(memo, Tensor) and memo.ndim > 0 and len(memo) == size:
        return memo[rows]
    if isinstance(memo, tuple | list):
        members = [_picked(member, size, rows) for member in memo]
        return type(memo)(*members) if hasattr(memo, "_fields") else type(memo)(members)
    what = f"a tensor of shape {tuple(memo.shape)}" if isinstance(memo, Tensor) else repr(memo)
    raise TypeError(
        f"memo holds {what}, must be numbers and tensors of the {size} rows, or tuples of them: override pick"
    )


def level_process(run: SamplingContext) -> LevelProcess:
    """Return the process of a sampler that requires a ``LevelProcess``, which ``sample`` has checked."""
    return cast(LevelProcess, run.process)


def at(run: SamplingContext, k: int) -> Times:
    """The k-th time of the grid for every sequence, (B,), or, on the path of a pace, for every position, (B, L)."""
    place = run.times[k].expand(run.free.shape[0]).to(torch.float64)
    return place if run.path is None else run.path(place)


def joint(laws: Tensor, texts: Tokens) -> Float64[Tensor, "*n N"]:
    """The probability of each text where positions are drawn on their own, for the ``kernel`` of a sampler.

    Args:
        laws: (..., L, S) of each position's state.
        texts: (N, L).
    """
    result = torch.ones((), dtype=torch.float64, device=laws.device)
    for i in range(texts.shape[1]):
        result = result * laws[..., i, :].to(torch.float64)[..., texts[:, i]]
    return result
