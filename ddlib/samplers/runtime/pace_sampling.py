"""Sampling along a pace: block by block from left to right, or with one time per position."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ddlib.paces import Pace
from ddlib.parameterization.logits import check_time_input
from ddlib.samplers.base import Sampler, SamplingContext
from ddlib.samplers.runtime.context import CachedContext, FullContext, WindowContext
from ddlib.samplers.runtime.loop import SamplingLoop
from ddlib.samplers.runtime.model import ModelWrapper
from ddlib.typing import BlockDenoiser, Denoiser, Times, Tokens
from ddlib.utils.random import Generator, KeyedGenerator, rand

Networks = Callable[[FullContext], ModelWrapper]
"""Map from the context of a window to the model wrapper of a call of ``sample``."""


def along(
    pace: Pace, loop: SamplingLoop, run: SamplingContext, fixed: Tokens, networks: Networks, keep: bool
) -> Tokens:
    """Draw the tokens at the free positions along a pace; the others are ``fixed``.

    Args:
        pace: the order of the positions.
        loop: the loop over steps.
        run: context of the full sequences; its grid is that of one part of the pace.
        fixed: (B, L) the fixed tokens.
        networks: map from the context of a window to its model wrapper.
        keep: whether a ``BlockDenoiser`` caches its computations for earlier blocks.

    Raises:
        TypeError: a sampler or a denoiser that does not support the pace.
        ValueError: a length that the pace does not support.
    """
    if not isinstance(pace, Pace):
        raise TypeError(f"pace is {pace!r}, must be a ddlib.paces.Pace object such as Blocks(32), or None")
    rows, length = fixed.shape
    parts = pace.parts(length)
    if pace.block is not None:
        check_paced(pace, loop.sampler)
        _check_network(pace, run)
        return _by_blocks(pace.block, loop, run, fixed, networks, keep)
    chance = torch.zeros(rows, length, dtype=torch.float64, device=fixed.device)
    chance = rand(chance.shape, run.generator, fixed.device) if pace.random else chance
    part = torch.arange(parts - 1, -1, -1, device=fixed.device)[:, None]
    grid = torch.cat([run.times[:1], ((part + run.times[1:]) / parts).flatten()])

    def path(u: Tensor) -> Times:
        uniforms = chance[:1].expand(len(u), -1) if len(u) != rows else chance
        return pace.checked(pace.times(u, uniforms), uniforms)

    if path(grid[:1].expand(rows)).ndim == 1 and not pace.random:  # one time for all positions
        return loop.words(replace(run, times=path(grid)), fixed)
    check_paced(pace, loop.sampler)
    _check_network(pace, run)
    return loop.words(replace(run, times=grid, path=path), fixed)


def check_paced(pace: Pace, sampler: Sampler) -> None:
    """Raise TypeError unless the sampler supports the pace, with blocks or with one time per position."""
    if pace.block is None and not sampler.own_times:
        raise TypeError(
            f"pace is {pace!r}, which {sampler!r} cannot serve: its step takes all positions of a text at one time; "
            "Ancestral() serves it"
        )
    if pace.block is not None and not sampler.supports_stopping:
        raise TypeError(f"pace is {pace!r}, which {sampler!r} cannot serve: a row is several texts there")


def _by_blocks(
    size: int, loop: SamplingLoop, run: SamplingContext, fixed: Tokens, networks: Networks, keep: bool
) -> Tokens:
    """Draw the blocks from left to right, each by a run of the sampler; blocks without free positions are skipped."""
    contexts, free, prior = _Looks(run.network.denoiser, size, keep), run.free, _noise_behind(size, run)
    numbers, begun = count(-1), False
    for start in range(0, fixed.shape[1], size):
        end = start + size
        here, later = slice(start, end), slice(end, None)
        noise = _block_generator(run.generator, size < fixed.shape[1])  # also for blocks that are skipped
        if not bool(free[:, here].any()):
            continue
        is_fixed = ~free[:, later]
        behind = torch.where(is_fixed, fixed[:, later], prior[:, later])
        times = (~is_fixed).to(torch.float64)
        after = torch.where(is_fixed, fixed[:, later], run.process.vocab_size)

        def on_step(
            k: int, t: Tensor, z: Tensor, *, around: tuple[Tensor, Tensor, Tensor] = (fixed[:, :start], behind, times),
            begun: bool = begun,
        ) -> None:  # fmt: skip
            if k >= 0 or not begun:
                before, behind, times = around
                parts = [torch.zeros_like(before).to(t), t[:, None].expand(z.shape), times.to(t)]
                assert loop.on_step is not None
                loop.on_step(next(numbers), torch.cat(parts, 1), torch.cat([before, z, behind], 1))

        context = contexts.at(fixed[:, :start], after, behind, times)
        block_run = replace(run, predict=networks(context), free=free[:, here], generator=noise)
        block_loop = replace(loop, on_step=None if loop.on_step is None else on_step)
        fixed = torch.cat([fixed[:, :start], block_loop.words(block_run, fixed[:, here]), fixed[:, later]], 1)
        begun = True
        for ending in loop.endings:
            closed = ending.closed(fixed[:, :end], run.free[:, :end])[:, None]
            fixed, free = torch.where(closed, ending.trim(fixed, run.free), fixed), free & ~closed
    return fixed


class _Looks:
    """Contexts of the model input, one block after the other."""

    def __init__(self, denoiser: Denoiser, size: int, keep: bool) -> None:
        block_size = getattr(denoiser, "block_size", 0)
        self.denoiser = denoiser
        # the denoiser ignores everything behind its own blocks
        self.short = bool(block_size) and size % block_size == 0
        self.keeps = keep and self.short and isinstance(denoiser, BlockDenoiser)
        self.cache: Any = None

    def at(self, before: Tokens, after: Tensor, behind: Tensor, times: Tensor) -> FullContext:
        """Return the context of the block between the tokens ``before`` and the states ``behind``."""
        if self.keeps:
            assert isinstance(self.denoiser, BlockDenoiser)
            done = 0 if self.cache is None else self.cache.words.shape[1]
            self.cache = self.denoiser.prefill(before[:, done:], self.cache)
            return CachedContext(self.denoiser, before, after, self.cache)
        kept = 0 if self.short else behind.shape[1]
        return WindowContext(self.denoiser, before, after, behind[:, :kept], times[:, :kept])


def _noise_behind(size: int, run: SamplingContext) -> Tokens:
    """Draw noise for all positions behind the first block, once and for every kind of denoiser."""
    rows, length = run.free.shape
    first = torch.zeros(rows, size, dtype=torch.int64, device=run.free.device)
    if size == length:
        return first
    noise = _block_generator(run.generator, True)
    return torch.cat([first, run.process.sample_prior((rows, length - size), noise, device=run.free.device)], 1)


def _block_generator(generator: Generator, several: bool) -> Generator:
    """Return the generator of a block; a keyed one must not depend on the number of earlier draws of other rows."""
    return generator.split(1) if several and isinstance(generator, KeyedGenerator) else generator


def _check_network(pace: Pace, run: SamplingContext) -> None:
    """Raise TypeError unless the denoiser takes times of positions and returns token distributions."""
    check_time_input(run.network.denoiser, None, repr(pace))
    if run.network.step_distribution is not None:
        raise TypeError(
            f"pace is {pace!r}, and {run.network.denoiser!r} steers the law of z_s, of texts at one time: steer "
            "on='words'"
        )
