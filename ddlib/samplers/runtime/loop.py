"""Loop over the steps of a sampler."""

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
    """Loop over the steps of a sampler, for full sequences or for a block of them."""

    sampler: Sampler
    sharpening: Truncation
    endings: tuple[Ending, ...]
    on_step: Callable[[int, Tensor, Tensor], None] | None

    def words(self, run: SamplingContext, fixed: Tokens) -> Tokens:
        """Draw the tokens at the free positions; the others are ``fixed``.

        Args:
            run: model, noise, grid and free positions.
            fixed: (B, L) the fixed tokens.
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
                    tokens, done, memos[i] = ending.finished(run, state, drawn, memos[i])
                    fixed, free = torch.where(done & free, tokens, fixed), free & ~done
                    run, state = replace(run, free=free), state._replace(z=torch.where(free, state.z, fixed))
            if self.on_step is not None:
                self.on_step(k, state.t, state.z)
            if self.endings and not bool(free.any()):
                return fixed
        run = replace(run, sharpen=sharpening.at(0.0))
        return torch.where(free, sampler.finalize(run, state), fixed)

    def _step(self, run: SamplingContext, state: State, k: int) -> State:
        """Take a step; along a pace, positions whose time does not change keep their states."""
        if run.path is None:
            return self.sampler.step(run, state, k)
        moves = at(run, k) > at(run, k + 1)
        moved = self.sampler.step(replace(run, free=run.free & moves), state, k)
        return moved._replace(z=torch.where(moves, moved.z, state.z))
