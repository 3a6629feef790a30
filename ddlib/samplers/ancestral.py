"""Ancestral sampling from the exact posterior."""

import torch

from ddlib.noise import rand
from ddlib.samplers.base import Run, Sampler, State, at


class Ancestral(Sampler):
    """Draws z_s from q(z_s | z_t, p) on a grid of times, exactly: no Euler step, no float32 Gumbel.

    For processes with levels the jumps are drawn before the network runs. On a step without a jump it does not run.

    Args:
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.
    """

    def __init__(self, force_transition: bool = False) -> None:
        self.force_transition = force_transition

    def step(self, run: Run, state: State, k: int) -> State:
        t, s = at(run, k), at(run, k + 1)
        level = run.process.level_of(state.z)
        target = run.process.jump(state.z, t, s, run.generator)
        if target is not None:
            target = torch.where(run.free, target, level)
            if torch.equal(target, level):
                # as many draws as a step with jumps, so that keyed noise does not depend on who shares the batch
                rand(state.z.shape, run.generator, state.z.device)
                return State(state.z, s)
        logits = run.predict(state.z, t)
        z = run.process.land(
            logits, state.z, t, s, target, run.generator, force=self.force_transition, sharpen=run.sharpen
        )
        return State(z, s)
