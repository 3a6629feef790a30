"""Base classes of samplers that act through another sampler."""

from abc import abstractmethod
from collections.abc import Callable

from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State
from ddlib.typing import Logits, Times, Tokens


class Wrapper(Sampler):
    """Sampler whose states are those of another one, ``inner``, and whose steps differ.

    All methods are those of ``inner``, unless a subclass overrides them. ``guarantees`` and
    ``step`` are its own; ``order`` and ``kernel``, which are about the distribution of a step, are
    those of a sampler that has none.
    """

    @property
    @abstractmethod
    def inner(self) -> Sampler:
        """The other sampler."""

    @property
    @abstractmethod
    def guarantees(self) -> Guarantees:
        """Properties of the wrapper, which depend on those of ``inner``."""

    def check(self, process: ForwardProcess) -> None:
        self.inner.check(process)

    def check_length(self, length: int) -> None:
        self.inner.check_length(length)

    def init(self, run: SamplingContext) -> State:
        return self.inner.init(run)

    def finalize(self, run: SamplingContext, state: State) -> Tokens:
        return self.inner.finalize(run, state)

    def time_of(self, run: SamplingContext, state: State) -> Times:
        return self.inner.time_of(run, state)

    def select_rows(self, state: State, rows: Int64[Tensor, "n"]) -> State:
        return self.inner.select_rows(state, rows)


class Transparent(Wrapper):
    """Sampler that draws what another one draws: all methods and properties are those of ``inner``,
    unless a subclass overrides them.
    """

    @property
    def guarantees(self) -> Guarantees:
        return self.inner.guarantees

    @property
    def order(self) -> int:
        return self.inner.order

    def kernel(
        self,
        process: ForwardProcess,
        predict: Callable[[Tokens, Times], Logits],
        z: Tokens,
        t: Times,
        s: Times,
    ) -> Float64[Tensor, "N N"]:
        return self.inner.kernel(process, predict, z, t, s)

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        return self.inner.step(run, state, k)

    def __repr__(self) -> str:
        return repr(self.inner)
