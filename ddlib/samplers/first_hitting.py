"""Exact sampling from event to event."""

import torch

from ddlib.processes import LevelProcess
from ddlib.samplers.base import Sampler, SamplingContext, State, level_process
from ddlib.samplers.runtime.reverse_step import move


class FirstHitting(Sampler):
    """Draws all jump times up front and calls the network once per jump: the continuous-time law, no grid at all.

    A sequence of L tokens with n levels has n L jumps. With as many steps the law is exact; with fewer, that many
    consecutive jumps share a network call. Needs a process whose jumps do not depend on the network (masked and
    hierarchical ones). Zheng et al., "Masked diffusion models are secretly time-agnostic masked models" (2024), for
    masks; here for any number of levels.

    Args:
        force_transition: keep a token inside its cluster on its way down, even where xi < 1 would let it leave.
    """

    requires, instead = LevelProcess, "Ancestral serves it"
    on_time_grid = by_times = False

    def __init__(self, force_transition: bool = False) -> None:
        self.force_transition = force_transition

    def init(self, run: SamplingContext) -> State:
        """The state at t = 1, with the time (B, L, n) at which each position enters each level as the memo."""
        entries, z = level_process(run).sample_jump_times(run.free.shape, run.generator, run.free.device)
        entries = torch.where(run.free[..., None], entries, 2.0)
        events = torch.where(entries <= 1, entries, -1.0).flatten(1).sort(-1, descending=True).values
        return State(z, run.times[0].expand(len(z)), (entries, events, (events >= 0).sum(-1)))

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        entries, events, count = state.memo
        # each sequence splits its own jumps evenly over the steps, whatever shares its batch
        first, last = (k * count + run.steps - 1) // run.steps, ((k + 1) * count + run.steps - 1) // run.steps
        idle = first == last
        # the network sees the text just before the group's first jump
        t = torch.where(idle, state.t, events.gather(1, first.clamp_max(events.shape[1] - 1)[:, None])[:, 0])
        end = torch.where(idle, state.t, events.gather(1, (last - 1).clamp_min(0)[:, None])[:, 0])
        target = torch.where(idle[:, None], run.process.level_of(state.z), (entries < end[:, None, None]).sum(-1))
        return State(move(run, state.z, t, end, target, self.force_transition), end, state.memo)

    def finalize(self, run: SamplingContext, state: State) -> torch.Tensor:
        """As for every sampler, at t = 0."""
        return super().finalize(run, state._replace(t=torch.zeros_like(state.t)))
