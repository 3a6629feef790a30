"""Exact sampling from jump to jump in continuous time."""

import torch

from ddlib.processes import LevelProcess
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State, level_process
from ddlib.samplers.reverse_step import move
from ddlib.utils.validation import check_flag


class FirstHitting(Sampler):
    """First-hitting sampler: draws all jump times first and calls the network once per jump,
    without a time grid.

    A sequence of L tokens with n edges per token has n L jumps. With as many steps the distribution
    is the exact one in continuous time; with fewer, consecutive jumps share a network call. It
    requires a process whose jumps do not depend on the network (masked and hierarchical ones).
    Zheng et al., "Masked diffusion models are secretly time-agnostic masked models" (2024), for
    masks; here for any number of levels.

    Args:
        force_transition: keep a token inside its cluster as it descends, even where xi < 1 would
            let it leave.
    """

    requires = LevelProcess
    instead = "use Ancestral"

    def __init__(self, force_transition: bool = False) -> None:
        self.force_transition = check_flag("force_transition", force_transition)

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(
            on_time_grid=False,
            by_times=False,
            independent_draws=True,
            keeps_tokens=True,
            supports_joint_draws=True,
            forces_transitions=self.force_transition,
        )

    def init(self, run: SamplingContext) -> State:
        """Draw the state at t = 1; the memo holds the place (B, L, n) of each jump among those of
        its sequence.

        Jumps have places, and not times alone, since late ones may have the same time in floating
        point.
        """
        entries, z = level_process(run).sample_jump_times(
            run.free.shape, run.generator, run.free.device
        )
        entries = torch.where(run.free[..., None], entries, 2.0)
        jumps = torch.where(entries <= 1, entries, -1.0).flatten(1)
        events, order = jumps.sort(-1, descending=True)
        places = torch.where(jumps >= 0, order.argsort(-1), -1).view_as(entries)
        return State(z, run.times[0].expand(len(z)), (places, events, (events >= 0).sum(-1)))

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        places, events, count = state.memo
        # per sequence, its jumps are split evenly over the steps, whatever else is in the batch
        first = (k * count + run.steps - 1) // run.steps
        last = ((k + 1) * count + run.steps - 1) // run.steps
        idle = first == last
        # the network takes the sequence just before the first jump of the group
        t = torch.where(
            idle, state.t, events.gather(1, first.clamp_max(events.shape[1] - 1)[:, None])[:, 0]
        )
        end = torch.where(idle, state.t, events.gather(1, (last - 1).clamp_min(0)[:, None])[:, 0])
        target = torch.where(
            idle[:, None], run.process.level_of(state.z), (places >= last[:, None, None]).sum(-1)
        )
        return State(move(run, state.z, t, target, self.force_transition), end, state.memo)

    def finalize(self, run: SamplingContext, state: State) -> torch.Tensor:
        """Return tokens only, as ``Sampler`` does, at t = 0."""
        return super().finalize(run, state._replace(t=torch.zeros_like(state.t)))
