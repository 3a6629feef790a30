"""Sampling in steps of fixed sizes: the host waits for no step, and a step may be a CUDA graph."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.contrib.captured import Captured
from ddlib.parameterization.logits import to_cavity
from ddlib.processes import LevelProcess
from ddlib.samplers.base import (
    Guarantees,
    Observer,
    Sampler,
    SamplingContext,
    State,
    at,
)
from ddlib.samplers.control import Control, Needs, SamplingCall, check_single
from ddlib.samplers.loop import take_step
from ddlib.samplers.runtime.model import Model, Predictions
from ddlib.samplers.state_draws import Draws, Noise
from ddlib.typing import Sharpen, Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import Generator, KeyedGenerator, rand
from ddlib.utils.validation import check_count, check_flag, hide_values, require

_HELD = 1 << 24
"""Number of logits in memory at a time."""
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
            sampler with ``Guarantees.own_times`` with a constant temperature, else the call of
            the network. On other devices a step computes the same without a graph.

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
        records = self.graph and is_constant(run)
        rehearsal = rehearse(run, state, records)
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
        if self.graph and not records:
            network = network.captured()
        steps = (CapturedSteps if records else FixedSteps)(run.sampler, network, rehearsal)
        return replace(run, sampler=steps), state, None

    def finish(self, run: SamplingCall, tokens: Tokens) -> Tokens:
        whole_model(run).faults.check()
        return tokens


class Faults:
    """Faults of steps, which are read after the last one.

    Args:
        device: device of the steps.
    """

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(2, dtype=torch.bool, device=device)

    def note(
        self, lost: Bool[Tensor, ""] | None = None, bad: Bool[Tensor, ""] | None = None
    ) -> None:
        """Note whether a position was lost, and whether logits are not finite."""
        for place, fault in enumerate((lost, bad)):
            if fault is not None:
                self.values[place].logical_or_(fault)

    def check(self) -> None:
        """Wait for the steps and raise ValueError if they had a fault."""
        lost, bad = self.values.tolist()
        require(
            not bad,
            "logits hold NaN, +inf, or -inf only, must be finite or -inf with at least one finite "
            "entry; without FixedCapacity the message names the position",
        )
        require(
            not lost,
            "controls holds FixedCapacity(), and more positions descended than were drawn before "
            "the first step: another control changes the levels of sequences",
        )


class WholeModel(Model):
    """Denoiser that is evaluated at the whole batch, with predictions at a fixed number of
    positions.

    Args:
        model: the denoiser.
    """

    capacity: int | None = None
    """Number of positions; None for the selected ones, as in ``Model``."""

    def __init__(self, model: Model) -> None:
        super().__init__(
            model.process,
            model.denoiser,
            model.parameterization,
            False,
            model.logit_processors,
            model.context,
        )
        self.faults = Faults(model.process.device)
        self._recorded: Captured | None = None

    def at_most(self, capacity: int | None) -> "WholeModel":
        """Return the model with another capacity."""
        model = copy.copy(self)
        model.capacity = capacity
        return model

    def captured(self) -> "WholeModel":
        """Return the model with recorded calls of the denoiser."""
        model = copy.copy(self)
        model._recorded = Captured(super()._call)
        return model

    def at(self, z: Tokens, t: Times, where: Bool[Tensor, "B L"]) -> Iterator[Predictions]:
        if self.capacity is None:
            yield from super().at(z, t, where)
            return
        self.faults.note(lost=where.sum() > self.capacity)
        if not self.capacity:
            return
        output = self._run(z, t.to(torch.get_default_dtype())).flatten(0, 1)
        whole = z[:, :0] if self.logit_processors is None else self.context.states(z)
        # the selected positions first
        places = (~where).flatten().to(torch.int8).argsort(stable=True)[: self.capacity]
        for place in places.split(max(1, _HELD // self.process.vocab_size)):
            b = place // z.shape[1]
            i = place % z.shape[1]
            rows = self.head.narrow(output[place])
            times = t[b] if t.ndim == 1 else t[b, i]
            yield WholePredictions(self, rows, b, i, z[b, i], times, whole[b])

    @property
    def _narrows(self) -> bool:
        return False

    def _call(self, z: Tokens, t: Times, positions: Tensor | None = None, **options: Any) -> Tensor:
        if self._recorded is None or options:
            return super()._call(z, t, positions, **options)
        output: Tensor = self._recorded(z, t)
        return output


def whole_model(run: SamplingContext) -> WholeModel:
    """Return the model, typed as the one that ``FixedCapacity.prepare`` made."""
    assert isinstance(run.network, WholeModel)
    return run.network


class WholePredictions(Predictions):
    """Model output at positions of which some do not descend."""

    def within(self, where: Bool[Tensor, "B L"]) -> Iterator[Predictions]:
        yield self


class WholeDraws(Draws):
    """Independent draws at positions of which some stay, in operations of fixed sizes."""

    def states(
        self,
        predictions: Iterable[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        noise: Noise,
        force: bool,
        sharpen: Sharpen,
    ) -> Iterator[tuple[Predictions, Int64[Tensor, "N"]]]:
        for part in predictions:
            u = noise.state[part.b, part.i]
            states = part.z
            for here, first, log_probs in _descents(part, target[part.b, part.i], force):
                states = torch.where(here, first + draw_logits(sharpen(log_probs), u), states)
            yield part, states

    def log_probs(
        self,
        predictions: Sequence[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        force: bool,
    ) -> Iterator[tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Float[Tensor, "n K"]]]:
        """Compute the distributions, padded with -inf to the number of tokens; at positions that
        stay they are another one.
        """
        for part in predictions:
            result: Tensor | None = None
            for here, _, log_probs in _descents(part, target[part.b, part.i], force):
                width = part.network.process.vocab_size - log_probs.shape[-1]
                normalised = log_probs.log_softmax(-1)
                padded = torch.nn.functional.pad(normalised, (0, width), value=-torch.inf)
                result = padded if result is None else torch.where(here[:, None], padded, result)
            assert result is not None
            yield part.b, part.i, result


def _descents(
    part: Predictions, target: Int64[Tensor, "N"], force: bool
) -> Iterator[tuple[Bool[Tensor, "N"], int, Float[Tensor, "N K"]]]:
    """Yield, for each pair of levels, the positions that descend between them, the first state of
    the lower one, and log-probabilities of its members at all positions, valid at these.
    """
    network = part.network
    assert isinstance(network, WholeModel)
    process = network.process
    assert isinstance(process, LevelProcess)
    level = process.level_of(part.z)
    rows = network.head.all_logits(part.output)
    logits = to_cavity(process, network.layout, rows[:, None], part.z[:, None], part.t)[:, 0]
    if network.logit_processors is not None:
        logits = network.logit_processors(logits, part.states, part.i + network.context.first)
    bad = ~logits.amax(-1).isfinite()
    network.faults.note(bad=(bad & (target < level)).any())
    offsets = process.hierarchy.offsets
    for i in range(len(process.levels) - 1):
        for j in range(i + 1, len(process.levels)):
            state = torch.where(level == j, part.z, offsets[j])
            log_probs = process.descendant_logits(logits, state, j, i, force)
            yield (level == j) & (target == i), offsets[i], log_probs


class Rehearsal(NamedTuple):
    """Draws of all steps that do not depend on the network."""

    uniforms: list[list[Float64[Tensor, "..."]]]
    """Uniforms of each step."""
    counts: list[int]
    """Number of positions that descend in each step."""
    reads: bool
    """True if the sampler reads distributions, so that the counts are not those of the call."""


class RehearsedModel(Model):
    """Model that counts positions in place of evaluating the denoiser.

    Args:
        model: the denoiser.
    """

    def __init__(self, model: WholeModel) -> None:
        vars(self).update(vars(model))
        self.count = torch.zeros((), dtype=torch.int64, device=model.process.device)

    def at(self, z: Tokens, t: Times, where: Bool[Tensor, "B L"]) -> Iterator[Predictions]:
        self.count = self.count + where.sum()
        place = torch.arange(z.numel(), device=z.device)
        b = place // z.shape[1]
        i = place % z.shape[1]
        yield WholePredictions(self, z.new_empty(z.numel(), 0), b, i, z[b, i], z[b, i], z[b, :0])

    @property
    def _narrows(self) -> bool:
        return False


class RehearsedDraws(Draws):
    """The first state of the new level in place of a draw."""

    reads: bool = False

    def states(
        self,
        predictions: Iterable[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        noise: Noise,
        force: bool,
        sharpen: Sharpen,
    ) -> Iterator[tuple[Predictions, Int64[Tensor, "N"]]]:
        for part in predictions:
            process = part.network.process
            assert isinstance(process, LevelProcess)
            to = target[part.b, part.i]
            first = process.hierarchy.starts[to]
            yield part, torch.where(to < process.level_of(part.z), first, part.z)

    def log_probs(
        self,
        predictions: Sequence[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        force: bool,
    ) -> Iterator[tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Float[Tensor, "n K"]]]:
        self.reads = True
        yield from ()


class Recorder(KeyedGenerator):
    """Generator whose numbers are those of another one, and are kept.

    Args:
        generator: the other one.
        device: device of the numbers.
    """

    def __init__(self, generator: Generator, device: torch.device) -> None:
        self.index = torch.empty(0, dtype=torch.int64, device=device)
        self.numbers: list[Tensor] = []
        self._generator = generator

    def rand(self, shape: Sequence[int]) -> Float64[Tensor, "..."]:
        numbers = rand(shape, self._generator, self.index.device)
        self.numbers.append(numbers)
        return numbers


class Replayed(KeyedGenerator):
    """Generator of given numbers.

    Args:
        numbers: the numbers of each draw.
    """

    def __init__(self, numbers: Sequence[Tensor]) -> None:
        self.index = numbers[0]
        self._numbers = iter(numbers)

    def rand(self, shape: Sequence[int]) -> Float64[Tensor, "..."]:
        numbers = next(self._numbers, None)
        require(
            numbers is not None and numbers.shape == torch.Size(shape),
            f"a step draws uniforms of shape {tuple(shape)} that it did not draw before the first "
            "step: what a sampler draws must not depend on the states",
        )
        assert numbers is not None
        return numbers


def rehearse(run: SamplingCall, state: State, records: bool) -> Rehearsal:
    """Take all steps without the network, and keep their uniforms and their numbers of jumps.

    Args:
        run: the call.
        state: before the first step.
        records: whether all steps but the first are recorded as one graph.
    """
    network = RehearsedModel(whole_model(run))
    draws = RehearsedDraws()
    here = replace(run, network=network, draws=draws, observer=Observer())
    captured = Captured(partial(_rehearse_step, here))
    uniforms: list[list[Tensor]] = []
    counts = []
    with hide_values():
        for k in range(run.steps):
            if records and k:
                numbers = [rand(one.shape, run.generator, one.device) for one in uniforms[0]]
                z, t, count = captured(state.z, state.t, times_of(run, k), run.free, *numbers)
                state = State(z, t)
            else:
                network.count = torch.zeros_like(network.count)
                recorder = Recorder(run.generator, run.free.device)
                state = take_step(replace(here, generator=recorder), state, k)
                numbers = recorder.numbers
                count = network.count
            uniforms.append(numbers)
            counts.append(count.clone())
    return Rehearsal(uniforms, torch.stack(counts).tolist(), draws.reads)


def _rehearse_step(
    run: SamplingCall,
    z: Tokens,
    t: Times,
    times: Float64[Tensor, "2"],
    free: Bool[Tensor, "B L"],
    *uniforms: Tensor,
) -> tuple[Tokens, Times, Int64[Tensor, ""]]:
    """Take the step between two times, and count the positions that descend."""
    assert isinstance(run.network, RehearsedModel)
    run.network.count = torch.zeros_like(run.network.count)
    here = replace(run, times=times, free=free, generator=Replayed(uniforms))
    state = take_step(here, State(z, t), 0)
    return state.z, state.t, run.network.count


def times_of(run: SamplingContext, k: int) -> Float64[Tensor, "2"]:
    """Return the two times of a step, which are those of all sequences."""
    return torch.stack([at(run, k)[0], at(run, k + 1)[0]])


class FixedSteps(Sampler):
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
    def guarantees(self) -> Guarantees:
        return self.sampler.guarantees

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        uniforms = self._rehearsal.uniforms[k]
        network = self._network if self._moves(k) else self._network.at_most(0)
        with hide_values():
            return self._step(replace(run, network=network), state, k, uniforms)

    def _step(
        self, run: SamplingContext, state: State, k: int, uniforms: Sequence[Tensor]
    ) -> State:
        return self.sampler.step(replace(run, generator=Replayed(uniforms)), state, k)

    def _moves(self, k: int) -> bool:
        """Return whether a position may descend in a step."""
        return self._rehearsal.reads or self._rehearsal.counts[k] > 0

    def finalize(self, run: SamplingContext, state: State) -> Tokens:
        self._network.faults.check()
        return self.sampler.finalize(run, state)

    def time_of(self, run: SamplingContext, state: State) -> Times:
        return self.sampler.time_of(run, state)

    def __repr__(self) -> str:
        return repr(self.sampler)


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
