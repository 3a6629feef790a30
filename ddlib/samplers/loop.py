"""Sampling loop: steps, controls and restored prompts, along a pace or block by block."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ddlib.paces import Pace
from ddlib.samplers.base import Sampler, State, at
from ddlib.samplers.control import SamplingCall
from ddlib.samplers.runtime.context import unknown_state
from ddlib.typing import Times, Tokens
from ddlib.utils.random import Generator, KeyedGenerator, rand


def draw_tokens(call: SamplingCall) -> Tokens:
    """Draw the tokens at the free positions, (B, L) states; the others are ``fixed``."""
    run = call
    state = _check_state(run.sampler, run.sampler.init(run))
    state = state._replace(z=torch.where(run.free, state.z, run.fixed))
    memos: list[Any] = []
    times = run.times.tolist()
    for control in run.controls:
        run, state, memo = control.begin(run, state)
        memos.append(memo)
    for k in range(-1, run.steps):
        if k >= 0:
            sharpen = run.sharpening(times[k])
            run = run if sharpen is run.sharpen else replace(run, sharpen=sharpen)
            state = take_step(run, state, k)
        for i, control in enumerate(run.controls):
            run, state, memos[i] = control.after_step(run, state, memos[i], k)
        if run.on_step is not None:
            run.on_step(k, state.t, state.z.clone())
        # without controls that finish positions, the host does not wait for the device
        if run.free is not call.free and not bool(run.free.any()):
            return state.z
    run = replace(run, sharpen=run.sharpening(0.0))
    return torch.where(run.free, run.sampler.finalize(run, state), state.z)


def take_step(run: SamplingCall, state: State, k: int) -> State:
    """Take a step; positions that are not free or whose time does not change keep their states."""
    here = run
    if run.path is not None:
        # controls fix positions, such as those behind the end of a text
        here = replace(run, path=_given_at_zero(run.path, run.free))
        here = replace(here, free=at(here, k) > at(here, k + 1))
    stepped = _check_state(run.sampler, run.sampler.step(here, state, k))
    stepped = stepped._replace(z=torch.where(here.free, stepped.z, state.z))
    run.observer.note_step(here, state, stepped, k)
    return stepped


def _check_state(sampler: Sampler, state: State) -> State:
    """Return what ``init`` or ``step`` has returned, or raise TypeError if it is not a state."""
    if not isinstance(state, State):
        what = f"init and step of {type(sampler).__name__} must return a ddlib.samplers.State(z, t)"
        raise TypeError(f"{what}, one returned a {type(state).__name__}")
    return state


def draw(call: SamplingCall) -> Tokens:
    """Draw the tokens at the free positions along the pace of the call."""
    if call.pace.block is not None:
        return _draw_by_blocks(call, call.pace.block)
    if share_time(call.pace, call.free.shape[1]):
        return draw_tokens(call)
    return draw_tokens(replace(call, path=_path(call)))


def share_time(pace: Pace, length: int) -> bool:
    """Return whether all positions of a sequence always share one time."""
    start = torch.ones(1, dtype=torch.float64)
    if pace.block is not None or pace.random:
        return False
    return pace.times(start, torch.zeros(1, length, dtype=torch.float64)).ndim == 1


def _path(call: SamplingCall) -> Callable[[Tensor], Times]:
    """Return the map from the progress of the sequences to the times of their positions."""
    pace = call.pace
    rows, length = call.free.shape
    chance = torch.zeros(rows, length, dtype=torch.float64, device=call.free.device)
    chance = rand(chance.shape, call.generator, call.free.device) if pace.random else chance

    def path(u: Tensor) -> Times:
        return pace.check_path(pace.times(u, chance), chance)

    return _given_at_zero(path, call.free)


def _given_at_zero(
    path: Callable[[Tensor], Times], free: Bool[Tensor, "B L"]
) -> Callable[[Tensor], Times]:
    """Return a path with time 0 at the prompt.

    Where noise replaces tokens by tokens, the network would not rely on it at a later time.
    """
    return lambda u: torch.where(free, path(u), 0.0)


def _draw_by_blocks(run: SamplingCall, size: int) -> Tokens:
    """Draw the blocks from left to right, each by a run of the sampler.

    Blocks without free positions are skipped.
    """
    contexts = run.block_contexts(run.network, size)
    fixed = run.fixed
    free = run.free
    prior = _noise_behind(size, run)
    numbers = count(-1)
    begun = False
    for start in range(0, fixed.shape[1], size):
        end = start + size
        here = slice(start, end)
        later = slice(end, None)
        noise = _block_generator(
            run.generator, size < fixed.shape[1]
        )  # also for blocks that are skipped
        if not bool(free[:, here].any()):
            continue
        is_fixed = ~free[:, later]
        behind = torch.where(is_fixed, fixed[:, later], prior[:, later])
        times = (~is_fixed).to(torch.float64)
        given = ~free[:, here]
        after = torch.where(is_fixed, fixed[:, later], unknown_state(run.process))

        def on_step(
            k: int,
            t: Tensor,
            z: Tensor,
            *,
            around: tuple[Tensor, Tensor, Tensor] = (fixed[:, :start], behind, times),
            given: Tensor = given,
            begun: bool = begun,
        ) -> None:
            if k >= 0 or not begun:
                before, behind, times = around
                inside = torch.where(given, 0.0, t[:, None])
                parts = [torch.zeros_like(before).to(t), inside, times.to(t)]
                assert run.on_step is not None
                run.on_step(next(numbers), torch.cat(parts, 1), torch.cat([before, z, behind], 1))

        context = contexts.at(fixed[:, :start], given, after, behind, times)
        block = replace(
            run,
            process=run.process.at_positions(here),
            network=run.network.within(context),
            fixed=fixed[:, here],
            free=free[:, here],
            generator=noise,
            on_step=None if run.on_step is None else on_step,
        )
        fixed = torch.cat([fixed[:, :start], draw_tokens(block), fixed[:, later]], 1)
        begun = True
        for control in run.controls:
            fixed, free = control.after_block(run, fixed, free, end)
    return fixed


def _noise_behind(size: int, run: SamplingCall) -> Tokens:
    """Draw noise for all positions behind the first block, once and for every kind of denoiser."""
    rows, length = run.free.shape
    first = torch.zeros(rows, size, dtype=torch.int64, device=run.free.device)
    if size == length:
        return first
    noise = _block_generator(run.generator, True)
    process = run.process.at_positions(slice(size, None))
    return torch.cat(
        [first, process.sample_prior((rows, length - size), noise, device=run.free.device)], 1
    )


def _block_generator(generator: Generator, several: bool) -> Generator:
    """Return the generator of a block.

    A keyed one must not depend on the number of earlier draws of other rows.
    """
    return generator.split(1) if several and isinstance(generator, KeyedGenerator) else generator
