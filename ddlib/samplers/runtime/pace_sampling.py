"""Texts along a pace: block by block from left to right, or each position by a time of its own."""

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
"""The network of a call of ``sample``, for a window of its texts."""


def along(
    pace: Pace, course: SamplingLoop, run: SamplingContext, fixed: Tokens, networks: Networks, keep: bool
) -> Tokens:
    """Words where the run is free, ``fixed`` elsewhere, drawn along a pace.

    Args:
        pace: which position when.
        course: what a run goes by.
        run: of whole texts; its grid is that of a part of the pace.
        fixed: (B, L) the words that stand.
        networks: what makes the network of a window.
        keep: whether a denoiser that can keeps what it worked out about earlier blocks.

    Raises:
        TypeError: a sampler or a denoiser that cannot.
        ValueError: a length that the pace cannot serve.
    """
    if not isinstance(pace, Pace):
        raise TypeError(f"pace is {pace!r}, must be a ddlib.paces.Pace object such as Blocks(32), or None")
    rows, length = fixed.shape
    parts = pace.parts(length)
    if pace.block is not None:
        check_paced(pace, course.sampler)
        _check_network(pace, run)
        return _by_blocks(pace.block, course, run, fixed, networks, keep)
    chance = torch.zeros(rows, length, dtype=torch.float64, device=fixed.device)
    chance = rand(chance.shape, run.generator, fixed.device) if pace.random else chance
    part = torch.arange(parts - 1, -1, -1, device=fixed.device)[:, None]
    grid = torch.cat([run.times[:1], ((part + run.times[1:]) / parts).flatten()])

    def path(u: Tensor) -> Times:
        own = chance[:1].expand(len(u), -1) if len(u) != rows else chance
        return pace.checked(pace.times(u, own), own)

    if path(grid[:1].expand(rows)).ndim == 1 and not pace.random:  # then one text tells the time of all
        return course.words(replace(run, times=path(grid)), fixed)
    check_paced(pace, course.sampler)
    _check_network(pace, run)
    return course.words(replace(run, times=grid, path=path), fixed)


def check_paced(pace: Pace, sampler: Sampler) -> None:
    """Raises TypeError unless the sampler can follow a pace of blocks, or of positions with times of their own."""
    if pace.block is None and not sampler.own_times:
        raise TypeError(
            f"pace is {pace!r}, which {sampler!r} cannot serve: its step takes all positions of a text at one time; "
            "Ancestral() serves it"
        )
    if pace.block is not None and not sampler.supports_stopping:
        raise TypeError(f"pace is {pace!r}, which {sampler!r} cannot serve: a row is several texts there")


def _by_blocks(
    size: int, course: SamplingLoop, run: SamplingContext, fixed: Tokens, networks: Networks, keep: bool
) -> Tokens:
    """From left to right, a run of the sampler for each block in which something is to be drawn."""
    looks, free, prior = _Looks(run.network.denoiser, size, keep), run.free, _behind(size, run)
    numbers, begun = count(-1), False
    for start in range(0, fixed.shape[1], size):
        end = start + size
        here, later = slice(start, end), slice(end, None)
        noise = _own(run.generator, size < fixed.shape[1])  # asked for whether or not the block is drawn
        if not bool(free[:, here].any()):
            continue
        standing = ~free[:, later]
        behind = torch.where(standing, fixed[:, later], prior[:, later])
        times = (~standing).to(torch.float64)
        after = torch.where(standing, fixed[:, later], run.process.vocab_size)

        def shown(
            k: int, t: Tensor, z: Tensor, *, around: tuple[Tensor, Tensor, Tensor] = (fixed[:, :start], behind, times),
            begun: bool = begun,
        ) -> None:  # fmt: skip
            if k >= 0 or not begun:
                before, behind, times = around
                own = [torch.zeros_like(before).to(t), t[:, None].expand(z.shape), times.to(t)]
                assert course.on_step is not None
                course.on_step(next(numbers), torch.cat(own, 1), torch.cat([before, z, behind], 1))

        sight = looks.at(fixed[:, :start], after, behind, times)
        part = replace(run, predict=networks(sight), free=free[:, here], generator=noise)
        turn = replace(course, on_step=None if course.on_step is None else shown)
        fixed = torch.cat([fixed[:, :start], turn.words(part, fixed[:, here]), fixed[:, later]], 1)
        begun = True
        for ending in course.endings:
            closed = ending.closed(fixed[:, :end], run.free[:, :end])[:, None]
            fixed, free = torch.where(closed, ending.trim(fixed, run.free), fixed), free & ~closed
    return fixed


class _Looks:
    """What a denoiser is shown of one block after the other."""

    def __init__(self, denoiser: Denoiser, size: int, keep: bool) -> None:
        seen = getattr(denoiser, "block_size", 0)
        self.denoiser = denoiser
        self.short = bool(seen) and size % seen == 0  # nothing behind whole blocks of its own is seen
        self.keeps = keep and self.short and isinstance(denoiser, BlockDenoiser)
        self.cache: Any = None

    def at(self, before: Tokens, after: Tensor, behind: Tensor, times: Tensor) -> FullContext:
        """Of the block between the words ``before`` and what stands, or is shown, behind it."""
        if self.keeps:
            assert isinstance(self.denoiser, BlockDenoiser)
            done = 0 if self.cache is None else self.cache.words.shape[1]
            self.cache = self.denoiser.prefill(before[:, done:], self.cache)
            return CachedContext(self.denoiser, before, after, self.cache)
        kept = 0 if self.short else behind.shape[1]
        return WindowContext(self.denoiser, before, after, behind[:, :kept], times[:, :kept])


def _behind(size: int, run: SamplingContext) -> Tokens:
    """Noise for all positions but those of the first block, drawn once, whoever looks at it."""
    rows, length = run.free.shape
    first = torch.zeros(rows, size, dtype=torch.int64, device=run.free.device)
    if size == length:
        return first
    noise = _own(run.generator, True)
    return torch.cat([first, run.process.sample_prior((rows, length - size), noise, device=run.free.device)], 1)


def _own(generator: Generator, several: bool) -> Generator:
    """A block's noise: where it is keyed it must not depend on how much other rows needed before."""
    return generator.split(1) if several and isinstance(generator, KeyedGenerator) else generator


def _check_network(pace: Pace, run: SamplingContext) -> None:
    """Raises TypeError unless the denoiser may be told times of positions, and tells laws of words."""
    check_time_input(run.network.denoiser, None, repr(pace))
    if run.network.step_distribution is not None:
        raise TypeError(
            f"pace is {pace!r}, and {run.network.denoiser!r} steers the law of z_s, of texts at one time: steer "
            "on='words'"
        )
