"""Sampling in steps of fixed sizes: the host waits for no step, and a step may be a CUDA graph."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jaxtyping import Bool, Float64
from torch import Tensor

from ddlib.contrib.captured import Captured
from ddlib.contrib.fixed_capacity.model import WholeDraws, WholeModel, whole_model
from ddlib.contrib.fixed_capacity.rehearsal import Rehearsal, Replayed, rehearse, times_of
from ddlib.samplers.base import Sampler, SamplingContext, State
from ddlib.samplers.control import Control, Needs, SamplingCall, check_single
from ddlib.samplers.wrapper import Transparent
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_count, check_flag, hide_values, require

_UNIT = 64
"""Capacities are multiples of it."""


class FixedCapacity(Control):
    """Steps whose operations and sizes do not depend on what is drawn.

    All levels that do not depend on the network are drawn before its first call, as are all
    uniforms. So the number of positions that descend is known: the largest of all steps is the
    ``capacity`` of each. A step calls the network with the whole batch, computes logits at as many
    positions, those that descend and others whose states stay, and reads no value. The host waits
    before the first step and after the last. Steps in which no position descends call no network.
    The tokens are those of the call without the control; on a CPU, other ones from the same
    distribution if the network has child logits, which are then drawn from child to child.

    Values are not checked in a step; logits that are not finite are refused after the last one. The
    uniforms take 8 bytes for each position, step and draw of a step, 2 or 3 in ``Ancestral``.

    Args:
        capacity: number of positions at which a step draws states, rounded up to a multiple of 64;
            None for the smallest that suffices. A sampler that ranks positions by the network's
            output has all.
        graph: whether the steps are recorded, in this call, as a CUDA graph: the whole step of a
            sampler with ``Guarantees.own_times`` and without a memo, with a constant temperature,
            else the call of the network. On other devices a step computes the same without a graph.
            A control that draws random numbers by itself, without the generator of the call, must
            not be used: this is not detected, and a graph may repeat the numbers of its first step.

    Raises:
        TypeError, ValueError: capacity not int or below 1, graph not bool; when sampling, more
            positions that descend than ``capacity``; logits that are not finite.
    """

    breaks = Needs.INDEPENDENT_DRAWS | Needs.JOINT_DRAWS | Needs.PART_BATCHES

    def __init__(self, capacity: int | None = None, graph: bool = False) -> None:
        self.capacity = None if capacity is None else check_count("capacity", capacity)
        self.graph = check_flag("graph", graph)

    @property
    def needs(self) -> Needs:
        needs = (
            Needs.FIXED_SIZES | Needs.FIXED_LENGTH | Needs.ONE_ALPHABET | Needs.TOKEN_DISTRIBUTIONS
        )
        return needs | Needs.NO_BLOCKS if self.graph else needs

    def check(self, call: SamplingCall) -> None:
        check_single(call, FixedCapacity)

    def prepare(self, run: SamplingCall) -> SamplingCall:
        return replace(run, network=WholeModel(run.network), draws=WholeDraws())

    def begin(self, run: SamplingCall, state: State) -> tuple[SamplingCall, State, Any]:
        rehearsal = rehearse(run, state, self.graph and is_constant(run))
        size = state.z.numel()
        capacity = size if rehearsal.reads else max(rehearsal.counts, default=0)
        if self.capacity is not None:
            require(
                rehearsal.reads or capacity <= self.capacity,
                f"capacity is {self.capacity}, must be at least {capacity}: so many positions "
                "descend in a step",
            )
            capacity = max(capacity, self.capacity)
        # other controls that evaluate the network do so at the positions that they select
        network = whole_model(run).at_most(min(-(-capacity // _UNIT) * _UNIT, size))
        if self.graph and not rehearsal.records:
            network = network.captured()
        kind = CapturedSteps if rehearsal.records else FixedSteps
        steps = kind(run.sampler, network, rehearsal)
        return replace(run, sampler=steps), state, None

    def finish(self, run: SamplingCall, tokens: Tokens) -> Tokens:
        whole_model(run).faults.check()
        return tokens


class FixedSteps(Transparent):
    """Steps of a sampler from uniforms that were drawn before.

    Args:
        sampler: the sampler.
        network: the denoiser at a fixed number of positions.
        rehearsal: draws of all steps.
    """

    def __init__(self, sampler: Sampler, network: WholeModel, rehearsal: Rehearsal) -> None:
        self.sampler = sampler
        self._network = network
        self._rehearsal = rehearsal

    @property
    def inner(self) -> Sampler:
        return self.sampler

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        uniforms = self._rehearsal.uniforms[k]
        network = self._network if self._moves(k) else self._network.at_most(0)
        with hide_values():
            return self._step(replace(run, network=network), state, k, uniforms)

    def _step(
        self, run: SamplingContext, state: State, k: int, uniforms: Sequence[Tensor]
    ) -> State:
        return super().step(replace(run, generator=Replayed(uniforms)), state, k)

    def _moves(self, k: int) -> bool:
        """Return whether a position may descend in a step."""
        return self._rehearsal.reads or self._rehearsal.counts[k] > 0

    def finalize(self, run: SamplingContext, state: State) -> Tokens:
        self._network.faults.check()
        return super().finalize(run, state)


class CapturedSteps(FixedSteps):
    """The same, each step the replay of one recording."""

    def __init__(self, sampler: Sampler, network: WholeModel, rehearsal: Rehearsal) -> None:
        super().__init__(sampler, network, rehearsal)
        self._recordings: dict[bool, Captured] = {}

    def _step(
        self, run: SamplingContext, state: State, k: int, uniforms: Sequence[Tensor]
    ) -> State:
        moves = self._moves(k)
        if moves not in self._recordings:
            self._recordings[moves] = Captured(partial(self._whole, run))
        inputs = (state.z, state.t, times_of(run, k), run.free, *uniforms)
        z, t = self._recordings[moves](*inputs)
        return State(z.clone(), t.clone())

    def _whole(
        self,
        run: SamplingContext,
        z: Tokens,
        t: Times,
        times: Float64[Tensor, "2"],
        free: Bool[Tensor, "B L"],
        *uniforms: Tensor,
    ) -> tuple[Tokens, Times]:
        """Take the step between two times."""
        step = super()._step(replace(run, times=times, free=free), State(z, t), 0, uniforms)
        return step.z, step.t


def is_constant(run: SamplingCall) -> bool:
    """Return whether steps differ in their times and uniforms alone."""
    rules = {run.sharpening(t) for t in run.times[:-1].tolist()}
    return run.path is None and len(rules) == 1 and run.sampler.guarantees.own_times
