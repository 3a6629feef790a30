"""Ancestral sampling from the exact posterior."""

from collections.abc import Callable

from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.samplers.base import Sampler, SamplingContext, State, at, joint
from ddlib.samplers.runtime.guided import guided_step
from ddlib.samplers.runtime.reverse_step import reverse_step
from ddlib.typing import Logits, Times, Tokens


class Ancestral(Sampler):
    """Draws z_s from q(z_s | z_t, p) on a grid of times, exactly: no Euler step, no float32 Gumbel.

    For processes with levels the jumps are drawn before the network runs, which they do not depend on (theory section
    3). It then runs on sequences in which a position jumps, and on a step without a jump not at all. Where a guidance
    steers the law of z_s itself, that is what z_s is drawn from.

    Args:
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.
    """

    own_times = True

    def __init__(self, force_transition: bool = False) -> None:
        self.force_transition = force_transition

    @property
    def order(self) -> int | None:
        """Positions that jump in one step are drawn on their own; a forced one follows no law of the process."""
        return None if self.force_transition else 1

    @property
    def supports_step_distribution(self) -> bool:
        """A forced token goes by the law of the words in its cluster."""
        return not self.force_transition

    def kernel(
        self, process: ForwardProcess, predict: Callable[[Tokens, Times], Logits], texts: Tokens, t: Times, s: Times
    ) -> Float64[Tensor, "N N"]:
        return joint(process.posterior(predict(texts, t).softmax(-1), texts, t, s), texts)

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        s = at(run, k + 1)
        return State(self.back(run, state.z, at(run, k), s), s)

    def back(self, run: SamplingContext, z: Tokens, t: Times, s: Times) -> Tokens:
        """Draws z_s ~ q(z_s | z_t, p), for whoever takes such a step among others.

        Args:
            run: the call of ``sample``.
            z: (B, L) states at ``t``.
            t: (B,) times.
            s: (B,) earlier times.
        """
        if run.network.step_distribution is not None:
            return guided_step(run, z, t, s)
        return reverse_step(run, z, t, s, self.force_transition)
