"""Loop over the steps of a sampler.

For full sequences, block by block, or with one time per position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor

from ddlib.paces import Pace
from ddlib.parameterization.capabilities import Capabilities
from ddlib.samplers.base import Sampler, SamplingContext, State, at
from ddlib.samplers.lengths import Length
from ddlib.samplers.runtime.context import CachedContext, ReusingContext, WindowContext
from ddlib.samplers.runtime.logit_processors import Truncation
from ddlib.samplers.runtime.model import FullContext, Model
from ddlib.samplers.runtime.resizing import Resizing
from ddlib.samplers.runtime.reuse import Reuse
from ddlib.samplers.stopping import Ending
from ddlib.typing import BlockDenoiser, Times, Tokens
from ddlib.utils.random import Generator, KeyedGenerator, rand


@dataclass(frozen=True, kw_only=True)
class SamplingCall(SamplingContext):
    """All that a call of ``sample`` passes on, checked.

    Samplers and correctors take it as their context.
    """

    sampler: Sampler
    fixed: Tokens
    """(B, L) the tokens at the positions that are not free."""
    truncation: Truncation
    """Temperature and truncation at every time; ``sharpen`` is the function of the present step."""
    endings: tuple[Ending, ...]
    """Criteria for finishing a sequence early."""
    on_step: Callable[[int, Tensor, Tensor], None] | None
    """Function that is called after each step; None for none."""
    pace: Pace | None
    """Order of the positions; None for one time for all."""
    keep: bool | Reuse
    """Whether a ``typing.BlockDenoiser`` caches its computations for earlier blocks, or the rule of
    another cache.
    """
    length: Length | None = None
    """Rule for the lengths of the sequences; None for the shape's."""


def draw_tokens(call: SamplingCall) -> Tokens:
    """Draw the tokens at the free positions, (B, L); the others are ``fixed``."""
    run = call
    sampler = call.sampler
    drawn = call.free
    fixed = call.fixed
    free = call.free
    memos: list[Any] = [None for _ in call.endings]
    resizing = None if call.length is None else Resizing(call.length, call, sampler)
    state = _checked(sampler, sampler.init(run))
    if resizing is not None:
        run, state = resizing(run, state._replace(z=torch.where(free, state.z, fixed)), -1)
        fixed = state.z
        free = run.free
    for k in range(-1, run.steps):
        if k >= 0:
            sharpen = call.truncation.at(float(run.times[k]))
            run = run if sharpen is run.sharpen else replace(run, sharpen=sharpen)
            state = _step(run, state, k)
        state = state._replace(z=torch.where(free, state.z, fixed))
        if k < run.steps - 1:
            for i, ending in enumerate(call.endings):
                tokens, done, memos[i] = ending.finished(run, state, drawn, memos[i])
                fixed = torch.where(done & free, tokens, fixed)
                free = free & ~done
                run = replace(run, free=free)
                state = state._replace(z=torch.where(free, state.z, fixed))
        if resizing is not None and 0 <= k < run.steps - 1:
            run, state = resizing(run, state, k)
            fixed = state.z
            free = run.free
        if call.on_step is not None:
            call.on_step(k, state.t, state.z)
        if (call.endings or resizing is not None) and not bool(free.any()):
            return fixed
    run = replace(run, sharpen=call.truncation.at(0.0))
    return torch.where(free, sampler.finalize(run, state), fixed)


def _step(run: SamplingCall, state: State, k: int) -> State:
    """Take a step; along a pace, positions whose time does not change keep their states."""
    if run.path is None:
        return _checked(run.sampler, run.sampler.step(run, state, k))
    moves = at(run, k) > at(run, k + 1)
    moved = _checked(run.sampler, run.sampler.step(replace(run, free=run.free & moves), state, k))
    return moved._replace(z=torch.where(moves, moved.z, state.z))


def _checked(sampler: Sampler, state: State) -> State:
    """Return what ``init`` or ``step`` has returned, or raise TypeError if it is not a state."""
    if not isinstance(state, State):
        what = f"init and step of {type(sampler).__name__} must return a ddlib.samplers.State(z, t)"
        raise TypeError(f"{what}, one returned a {type(state).__name__}")
    return state


def draw_along_pace(run: SamplingCall, pace: Pace) -> Tokens:
    """Draw the tokens at the free positions along the pace.

    The grid of the call is that of one part of the pace.

    Raises:
        TypeError: a sampler or a denoiser that does not support the pace.
        ValueError: a length that the pace does not support.
    """
    rows, length = run.free.shape
    parts = pace.parts(length)
    if pace.block is not None:
        _check_pace(run, pace)
        return _draw_by_blocks(run, pace.block)
    chance = torch.zeros(rows, length, dtype=torch.float64, device=run.free.device)
    chance = rand(chance.shape, run.generator, run.free.device) if pace.random else chance
    part = torch.arange(parts - 1, -1, -1, device=run.free.device)[:, None]
    grid = torch.cat([run.times[:1], ((part + run.times[1:]) / parts).flatten()])

    def path(u: Tensor) -> Times:
        uniforms = chance[:1].expand(len(u), -1) if len(u) != rows else chance
        times = pace.checked(pace.times(u, uniforms), uniforms)
        # the network takes time 0 at the prompt: where tokens may be wrong, at a later time it
        # would not rely on it
        return torch.where(run.free, times, 0.0) if times.ndim == 2 and len(u) == rows else times

    if path(grid[:1].expand(rows)).ndim == 1 and not pace.random:  # one time for all positions
        return draw_tokens(replace(run, times=path(grid)))
    _check_pace(run, pace)
    return draw_tokens(replace(run, times=grid, path=path))


def check_guided(
    network: Model, sampler: Sampler, plain: bool, endings: Sequence[Ending] = ()
) -> None:
    """Raise TypeError for a denoiser with a step distribution that the sampler or the options do
    not support.

    Args:
        network: the model of a call of ``sample``.
        sampler: the sampler.
        plain: whether all options that change token distributions have their defaults.
        endings: the stopping criteria.
    """
    if not network.capabilities.has_step_distribution:
        return
    for ending in endings:
        if ending.uses_predictions:
            raise TypeError(
                f"endings: {ending!r} reads token distributions, {network.denoiser!r} guides the "
                "distribution of z_s: "
                "use another stopping criterion, or on='tokens'"
            )
    if not sampler.guarantees.supports_step_distribution:
        raise TypeError(
            f"{sampler!r} draws from token distributions, {network.denoiser!r} guides the "
            "distribution of z_s: use "
            "Ancestral(), or on='tokens', which every sampler supports"
        )
    if not plain:
        raise TypeError(
            "temperature, top_p, forbidden and similar arguments act on token distributions, which "
            "are not used "
            f"here: {network.denoiser!r} guides the distribution of z_s; keep the defaults of "
            "these arguments, or use "
            "on='tokens'"
        )


def check_memory(
    able: Capabilities, sampler: Sampler, pace: Pace | None, compact: bool = True
) -> None:
    """Raise TypeError or ValueError for a call of ``sample`` in which no previous call of a
    sequence can be kept.

    Args:
        able: capabilities of the denoiser.
        sampler: the sampler.
        pace: the order of the positions.
        compact: argument of ``sample``.
    """
    if not able.takes_memory:
        raise TypeError(
            f"memory is True, and the denoiser {able.name} does not support it: a network whose "
            "features(z, t, "
            "memory=) takes those of its previous call must have the attribute takes_memory = "
            "True, as "
            "ddlib_models.DiT(memory=True) does; a guidance has no features"
        )
    if not sampler.guarantees.supports_stopping:
        raise TypeError(
            f"memory is True, which {sampler!r} does not support: a row has several sequences"
        )
    if pace is not None and pace.block is not None:
        raise TypeError(
            f"memory is True, and pace is {pace!r}, must have no blocks: each block is a call with "
            "other positions"
        )
    if not compact:
        raise ValueError(
            "compact is False with memory=True, must be True: a row must keep its memory in steps "
            "without a call"
        )


def check_paced(pace: Pace, sampler: Sampler) -> None:
    """Raise TypeError unless the sampler supports the pace, with blocks or with one time per
    position.
    """
    if pace.block is None and not sampler.guarantees.own_times:
        raise TypeError(
            f"pace is {pace!r}, which {sampler!r} does not support: its step has one time for all "
            "positions of a "
            "sequence; use Ancestral()"
        )
    if pace.block is not None and not sampler.guarantees.supports_stopping:
        raise TypeError(
            f"pace is {pace!r}, which {sampler!r} does not support: a row has several sequences"
        )


def _check_pace(run: SamplingCall, pace: Pace) -> None:
    """Raise TypeError unless sampler and denoiser support the pace."""
    check_paced(pace, run.sampler)
    if run.length is not None:
        raise TypeError(
            f"length is {run.length!r} and pace is {pace!r}, must be Together(): with a length all "
            "positions of a "
            "row have one time"
        )
    able = run.network.capabilities
    able.check_time_input(0, repr(pace))
    if able.has_step_distribution:
        raise TypeError(
            f"pace is {pace!r}, and {run.network.denoiser!r} guides the distribution of z_s, which "
            "needs one time per "
            "sequence: use on='tokens'"
        )


def _draw_by_blocks(run: SamplingCall, size: int) -> Tokens:
    """Draw the blocks from left to right, each by a run of the sampler.

    Blocks without free positions are skipped.
    """
    contexts = BlockContexts(run.network, size, run.keep)
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
        after = torch.where(is_fixed, fixed[:, later], run.process.num_states - 1)

        def on_step(
            k: int,
            t: Tensor,
            z: Tensor,
            *,
            around: tuple[Tensor, Tensor, Tensor] = (fixed[:, :start], behind, times),
            begun: bool = begun,
        ) -> None:
            if k >= 0 or not begun:
                before, behind, times = around
                parts = [torch.zeros_like(before).to(t), t[:, None].expand(z.shape), times.to(t)]
                assert run.on_step is not None
                run.on_step(next(numbers), torch.cat(parts, 1), torch.cat([before, z, behind], 1))

        context = contexts.at(fixed[:, :start], after, behind, times)
        block = replace(
            run,
            network=run.network.within(context),
            fixed=fixed[:, here],
            free=free[:, here],
            generator=noise,
            on_step=None if run.on_step is None else on_step,
        )
        fixed = torch.cat([fixed[:, :start], draw_tokens(block), fixed[:, later]], 1)
        begun = True
        for ending in run.endings:
            closed = ending.closed(fixed[:, :end], run.free[:, :end])[:, None]
            fixed = torch.where(closed, ending.trim(fixed, run.free), fixed)
            free = free & ~closed
    return fixed


class BlockContexts:
    """Contexts of the model input, one block after the other.

    Args:
        network: the model of the whole sequence.
        size: positions of a block.
        keep: whether a ``BlockDenoiser`` caches its computations for earlier blocks, or the rule of
            an approximate cache. A ``BlockDenoiser`` uses the exact cache instead.
    """

    def __init__(self, network: Model, size: int, keep: bool | Reuse) -> None:
        self.denoiser = network.denoiser
        able = network.capabilities
        # the denoiser ignores everything behind its own blocks
        self.short = able.block_size > 0 and size % able.block_size == 0
        self.keeps = bool(keep) and self.short and able.caches_blocks
        self.reuse = None if self.keeps or isinstance(keep, bool) else keep
        self.cache: Any = None

    def at(self, before: Tokens, after: Tensor, behind: Tensor, times: Tensor) -> FullContext:
        """Return the context of the block between the tokens ``before`` and the states
        ``behind``.
        """
        if self.keeps:
            done = 0 if self.cache is None else self.cache.tokens.shape[1]
            self.cache = cast(BlockDenoiser, self.denoiser).prefill(before[:, done:], self.cache)
            return CachedContext(self.denoiser, before, after, self.cache)
        if self.reuse is not None and (before.shape[1] or (self.reuse.suffix and behind.shape[1])):
            return ReusingContext(self.denoiser, before, after, behind, times, self.reuse)
        kept = 0 if self.short else behind.shape[1]
        return WindowContext(self.denoiser, before, after, behind[:, :kept], times[:, :kept])


def _noise_behind(size: int, run: SamplingCall) -> Tokens:
    """Draw noise for all positions behind the first block, once and for every kind of denoiser."""
    rows, length = run.free.shape
    first = torch.zeros(rows, size, dtype=torch.int64, device=run.free.device)
    if size == length:
        return first
    noise = _block_generator(run.generator, True)
    return torch.cat(
        [first, run.process.sample_prior((rows, length - size), noise, device=run.free.device)], 1
    )


def _block_generator(generator: Generator, several: bool) -> Generator:
    """Return the generator of a block.

    a keyed one must not depend on the number of earlier draws of other rows.
    """
    return generator.split(1) if several and isinstance(generator, KeyedGenerator) else generator
