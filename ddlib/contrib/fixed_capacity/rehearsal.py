"""Draws of all steps of a sampler that do not depend on the network."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.contrib.captured import Captured
from ddlib.contrib.fixed_capacity.model import WholeModel, WholePredictions, whole_model
from ddlib.processes import LevelProcess
from ddlib.samplers.base import Observer, SamplingContext, State, at
from ddlib.samplers.control import SamplingCall
from ddlib.samplers.loop import take_step
from ddlib.samplers.runtime.model import Model, Predictions
from ddlib.samplers.state_draws import Draws, Noise
from ddlib.typing import Sharpen, Times, Tokens
from ddlib.utils.random import Generator, KeyedGenerator, rand
from ddlib.utils.validation import hide_values, require


class Rehearsal(NamedTuple):
    """Draws of all steps that do not depend on the network."""

    uniforms: list[list[Float64[Tensor, "..."]]]
    """Uniforms of each step."""
    counts: list[int]
    """Number of positions that descend in each step."""
    reads: bool
    """True if the sampler reads distributions, so that the counts are not those of the call."""
    records: bool
    """True if a graph of one step is that of all: no memo is carried from step to step."""


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
        records: whether steps differ in their times and uniforms alone, and all but the first are
            recorded as one graph, unless the sampler has a memo.
    """
    network = RehearsedModel(whole_model(run))
    draws = RehearsedDraws()
    here = replace(run, network=network, draws=draws, observer=Observer())
    captured = Captured(partial(_rehearse_step, here))
    uniforms: list[list[Tensor]] = []
    counts = []
    with hide_values():
        for k in range(run.steps):
            records = records and state.memo is None
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
    return Rehearsal(uniforms, torch.stack(counts).tolist(), draws.reads, records)


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
