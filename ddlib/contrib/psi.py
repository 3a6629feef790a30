"""Psi-sampler: ancestral steps mixed with re-noising of a predicted clean sequence."""

from collections.abc import Sequence
from typing import Self

import torch

from ddlib.parameterization.logits import posterior_logits
from ddlib.processes import LevelProcess
from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State, at
from ddlib.samplers.reverse_step import move
from ddlib.typing import Logits, Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand
from ddlib.utils.validation import check_flag, check_number


class Psi(Sampler):
    r"""Ancestral step with probability kappa per position.

    Otherwise a token is drawn and noised to time s.

    :math:`z_s \sim \kappa\, q(z_s|z_t, p) + (1 - \kappa) \sum_x q(x|z_t, p)\, q_s(\cdot|x)`. The
    distribution at s is the same for every kappa, so this redraws tokens of any process
    (Psi-samplers, arXiv 2602.21185; theory section 9). For masks it is ReMDM with :math:`\sigma =
    (1 - \kappa)(1 - \alpha_s)`. The network runs at every position and step; in a process with
    levels only where a position descends. ``kappa = 1`` is ``Ancestral``, to the bit.

    Args:
        kappa: in [0, 1]; 0 re-noises every position in every step.
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.

    Raises:
        TypeError, ValueError: kappa outside [0, 1].
    """

    def __init__(self, kappa: float = 0.98, force_transition: bool = False) -> None:
        self.kappa = check_number("kappa", kappa, 0, 1, "in [0, 1]")
        self.force_transition = check_flag("force_transition", force_transition)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(0.5)]  # large enough for errors to be detected

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(
            own_times=True,
            supports_joint_draws=True,
            movable_positions=True,
            forces_transitions=self.force_transition,
        )

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        if self.kappa == 1:
            return Ancestral(self.force_transition).step(run, state, k)
        process = run.process
        z = state.z
        t = at(run, k)
        s = at(run, k + 1)
        keep = rand(z.shape, run.generator, z.device) < self.kappa
        # a position that is re-noised descends to a token first
        if isinstance(process, LevelProcess):
            target = process.sample_level(z, t, s, run.generator)
            stepped = move(run, z, t, torch.where(keep, target, 0), self.force_transition)
            tokens = process.states_as_tokens(stepped)
        else:
            logits = run.predict(z, t)
            stepped = process.sample_given_level(
                logits,
                z,
                t,
                s,
                None,
                run.generator,
                force=self.force_transition,
                sharpen=run.sharpen,
            )
            tokens = self._tokens(run, logits, z, t)
        return State(torch.where(keep, stepped, process.sample(tokens, s, run.generator)), s)

    def _tokens(self, run: SamplingContext, logits: Logits, z: Tokens, t: Times) -> Tokens:
        """Draw tokens x ~ q(x | z_t, p)."""
        if run.process.exact_ends:  # z_0 then has this distribution
            zero = torch.zeros_like(t)
            states = run.process.sample_given_level(
                logits, z, t, zero, None, run.generator, sharpen=run.sharpen
            )
            return run.process.states_as_tokens(states)
        cavity = run.process.sharpen(logits, z, t, run.sharpen)
        scores = posterior_logits(run.process, cavity, z, t)
        return draw_logits(scores, rand(z.shape, run.generator, z.device))
