"""Ancestral sampling from the exact posterior."""

from collections.abc import Callable

from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State, at, joint
from ddlib.samplers.reverse_step import reverse_step, step_by_guidance
from ddlib.typing import Logits, Times, Tokens
from ddlib.utils.validation import check_flag


class Ancestral(Sampler):
    """Exact draws z_s ~ q(z_s | z_t, p) on a grid of times, without Euler steps or float32 Gumbel
    noise.

    In a process with levels the jumps do not depend on the network and are drawn first (theory
    section 3). The network then runs only on sequences in which a position jumps, and not at all in
    a step without jumps. If a guidance defines the distribution of z_s directly, z_s is drawn from
    that distribution.

    Args:
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.
    """

    def __init__(self, force_transition: bool = False) -> None:
        self.force_transition = check_flag("force_transition", force_transition)

    @property
    def order(self) -> int:
        """Order 1, as jumps in one step are drawn independently.

        0 for forced transitions, which are not exact.
        """
        return 0 if self.force_transition else 1

    @property
    def guarantees(self) -> Guarantees:
        """With forced transitions, which need the distribution of the tokens in a cluster, step
        distributions are not supported.
        """
        return Guarantees(
            own_times=True,
            keeps_tokens=True,
            movable_positions=True,
            independent_draws=True,
            supports_joint_draws=True,
            forces_transitions=self.force_transition,
            supports_step_distribution=not self.force_transition,
        )

    def kernel(
        self,
        process: ForwardProcess,
        predict: Callable[[Tokens, Times], Logits],
        z: Tokens,
        t: Times,
        s: Times,
    ) -> Float64[Tensor, "N N"]:
        return joint(process.posterior(predict(z, t).softmax(-1), z, t, s), z)

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        s = at(run, k + 1)
        return State(self.back(run, state.z, at(run, k), s), s)

    def back(self, run: SamplingContext, z: Tokens, t: Times, s: Times) -> Tokens:
        """Draw z_s ~ q(z_s | z_t, p); also a part of the steps of other samplers.

        Args:
            run: the call of ``sample``.
            z: (B, L) states at ``t``.
            t: (B,) times.
            s: (B,) earlier times.
        """
        if run.network.capabilities.has_step_distribution:
            return step_by_guidance(run, z, t, s)
        return reverse_step(run, z, t, s, self.force_transition)
