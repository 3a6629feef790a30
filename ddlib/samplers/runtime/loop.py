"""The loop that every sampler runs in."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ddlib.samplers.base import Sampler, SamplingContext, State, at
from ddlib.samplers.runtime.logit_processors import Truncation
from ddlib.samplers.stopping import Ending
from ddlib.typing import Tokens


@dataclass(frozen=True)
class SamplingLoop:
    """What a run goes by from step to step, whether it draws a whole text or a part of one."""

    sampler: Sampler
    sharpening: Truncation
    endings: tuple[Ending, ...]
    on_step: Callable[[int, Tensor, Tensor], None] | None

    def words(self, run: SamplingContext, fixed: Tokens) -> Tokens:
        """Words where the run is free, ``fixed`` elsewhere.

        Args:
            run: its network, its noise, its grid, and where it is free.
            fixed: (B, L) the words that stand.
        """
        sampler, sharpening = self.sampler, self.sharpening
        drawn = free = run.free
        memos: list[Any] = [None for _ in self.endings]
        state = sampler.init(run)
        for k in range(-1, run.steps):
            if k >= 0:
                run = replace(run, sharpen=sharpening.at(float(run.times[k])))
                state = self._step(run, state, k)
            state = state._replace(z=torch.where(free, state.z, fixed))
            if k < run.steps - 1:
                for i, ending in enumerate(self.endings):
                    words, now, memos[i] = ending.finished(run, state, drawn, memos[i])
                    fixed, free = torch.where(now & free, words, fixed), free & ~now
                    run, state = replace(run, free=free), state._replace(z=torch.where(free, state.z, fixed))
            if self.on_step is not None:
                self.on_step(k, state.t, state.z)
            if self.endings and not bool(free.any()):
                return fixed
        run = replace(run, sharpen=sharpening.at(0.0))
        return torch.where(free, sampler.finalize(run, state), fixed)

    def _step(self, run: SamplingContext, state: State, k: int) -> State:
        """A step, in which positions whose time stands still, along a pace, are left as they are."""
        if run.path is None:
            return self.sampler.step(run, state, k)
        moves = at(run, k) > at(run, k + 1)
        moved = self.sampler.step(replace(run, free=run.free & moves), state, k)
        return moved._replace(z=torch.where(moves, moved.z, state.z))
