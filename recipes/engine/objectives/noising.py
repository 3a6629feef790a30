"""Noise of a batch, a function of (seed, step, example) alone."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import ddlib as dd
from ddlib.processes import unsqueeze_times
from ddlib.typing import Times
from recipes.data import Batch


@dataclass(frozen=True)
class NoisyBatch:
    """A batch at its times: tokens, states and padding (B, L), times (B,), or (B, L) with a pace.

    In packed rows every token is one sequence, (T, 1) and (T,); the network takes them as one row.
    """

    x: Int[Tensor, "B L"]
    z: Int[Tensor, "B L"]
    t: Times
    measure: Float[Tensor, "*n"]
    """Weight of each draw of a time, in the shape of ``t``; 0 where nothing is noised."""
    mask: Bool[Tensor, "B L"]
    """Tokens that count in the loss: not given."""
    cu_seqlens: Int[Tensor, " n"] | None = None
    """Starts of packed documents, and the total."""
    piece_t: Float[Tensor, " N"] | None = None
    """Time of each packed document."""
    at_once: bool = False
    """True if each block has a separate time, and the network takes the clean tokens in front of
    it.
    """
    labels: Int[Tensor, " N"] | None = None
    """Class of each sequence, or of each packed document."""
    planned: dd.PlannedLoss | None = None
    """What of the loss was computed before the network ran; None for nothing."""


_NEXT_PIECE = 2**40 + 0x9E3779B1
"""Between the numbers of two pieces of a row: more than there are rows, and odd, so that their
times lie apart.
"""


@dataclass(frozen=True)
class NoiseOptions:
    """Draws of times and levels, keys of a training loss."""

    levels: str = "independent"
    interval: tuple[float, float] = (0.0, 1.0)
    weigh_times: bool = True


def add_noise(
    process: dd.processes.ForwardProcess,
    batch: Batch,
    seed: int,
    step: int,
    options: NoiseOptions | None = None,
    density: dd.times.TimeDensity | None = None,
    pace: dd.paces.Pace | None = None,
    at_once: bool = False,
) -> NoisyBatch:
    """Noise a batch, with times and noise that depend on (seed, step, example) alone, by the
    options of the loss.

    Args:
        process: the noise.
        batch: clean examples.
        seed: seed of the run.
        step: optimizer step.
        options: how times and levels are drawn, and whether times are weighed.
        density: of the times within a part of the pace; None is uniform.
        pace: which position when; None is all at one time.
        at_once: see ``NoisyBatch``.
    """
    options = NoiseOptions() if options is None else options
    pace = dd.paces.Together() if pace is None else pace
    if batch.cu_seqlens is None:
        noise = dd.KeyedGenerator(seed, step, batch.index)
        t, measure = _draw_times(pace, noise, batch.x, options, density, at_once)
        if options.levels == "independent":
            z = process.sample(batch.x, t, noise)
        else:
            z = process.sample(batch.x, t, noise, levels=options.levels)
        if options.levels == "balanced":
            measure = measure * process.importance_weight(batch.x, z, t)
        states = process.tokens_as_states(batch.x)
        z, t = dd.hold_given(states, z, t, ~batch.free, pace.block if at_once else None)
        mask = batch.mask & batch.free
        return NoisyBatch(batch.x, z, t, measure, mask, at_once=at_once, labels=batch.labels)
    keyed = dd.KeyedGenerator(seed, step, _turns(batch), scattered=True)
    piece_t, piece_measure = _draw_times(pace, keyed, batch.index[:, None], options, density)
    x = batch.x.view(-1, 1)
    owner, noise = packed_tokens(batch, batch.cu_seqlens, seed, step)
    t = piece_t[owner]
    free = batch.free.view(-1, 1)
    z, t = dd.hold_given(x, process.sample(x, t, noise), t, ~free)
    mask = batch.mask.view(-1, 1) & free
    measure = piece_measure[owner]
    return NoisyBatch(x, z, t, measure, mask, batch.cu_seqlens, piece_t, labels=batch.labels)


_INFILL = 2**58
"""Added to the index of an example, so that its given tokens are independent of its noise."""


def infill(batch: Batch, seed: int, step: int, share: float) -> Batch:
    """Return a batch in which a random ``share`` of the tokens of each sequence is given.

    Rounded down, so that each sequence has a token to learn. They are a function of (seed, step,
    example) alone; of a packed row each document is a sequence.
    """
    if batch.cu_seqlens is None:
        owner = torch.arange(len(batch.x), device=batch.x.device).repeat_interleave(
            batch.x.shape[1]
        )
        chance = dd.KeyedGenerator(seed, step, batch.index + _INFILL).rand(batch.x.shape).flatten()
    else:
        owner, keyed = packed_tokens(batch, batch.cu_seqlens, seed, step, _INFILL)
        chance = keyed.rand(owner.shape)
    tokens = (batch.mask & batch.free).flatten()
    order = torch.where(tokens, chance, 2.0).argsort(stable=True)
    order = order[owner[order].argsort(stable=True)]  # by sequence, then by chance
    sizes, counts = (
        torch.zeros(len(batch.index), dtype=torch.int64, device=owner.device).index_add(
            0, owner, marks.long()
        )
        for marks in (torch.ones_like(tokens), tokens)
    )
    begins = sizes.cumsum(0) - sizes
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - begins[owner[order]]
    given = tokens & (rank < (share * counts).floor()[owner])
    return replace(batch, free=batch.free & ~given.view_as(batch.free))


def packed_tokens(
    batch: Batch, cu_seqlens: Int[Tensor, " n"], seed: int, step: int, stream: int = 0
) -> tuple[Int[Tensor, " T"], dd.KeyedGenerator]:
    """Return the document of each token of packed rows, and a generator of a number for each token.

    Args:
        batch: packed rows.
        cu_seqlens: their offsets.
        seed: seed of the run.
        step: optimizer step.
        stream: added to the index of a token; each stream is independent of the others.
    """
    lengths = cu_seqlens.diff()
    owner = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    offset = torch.arange(len(owner), device=owner.device) - cu_seqlens[owner]
    # 2^61: other numbers than those of the documents' times
    index = batch.index[owner] + offset + (2**61 + stream)
    return owner, dd.KeyedGenerator(seed, step, index)


def _turns(batch: Batch) -> Int[Tensor, " N"]:
    """Stratification index of each packed piece: the row's index, plus a different offset for each
    piece of that row.

    Numbers of tokens would not do: those of first pieces are multiples of the length, and all would
    have one time.
    """
    row = batch.index // batch.x.shape[1]
    piece = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    return row + piece * _NEXT_PIECE


def _draw_times(
    pace: dd.paces.Pace,
    noise: dd.KeyedGenerator,
    x: Int[Tensor, "B L"],
    options: NoiseOptions,
    density: dd.times.TimeDensity | None,
    at_once: bool = False,
) -> tuple[Times, Tensor]:
    """Times for training, and what each draw of them counts."""
    drawn = pace.draw(
        *x.shape,
        noise,
        density=density,
        interval=options.interval,
        at_once=at_once,
        weigh=options.weigh_times,
        device=x.device,
    )
    if drawn.t.ndim == 1:
        return drawn.t, drawn.measure
    # positions that are not noised get time 0 or 1, as in sampling, not an end of loss.interval
    end = (drawn.t > sum(options.interval) / 2).to(drawn.t)
    return torch.where(drawn.measure > 0, drawn.t, end), drawn.measure


def loss_weights(process: dd.processes.ForwardProcess, noisy: NoisyBatch) -> Float[Tensor, " n"]:
    """Return the weights of the bound, not clipped, of the tokens that are noised."""
    weights = process.loss_weight(noisy.x, noisy.z, noisy.t)
    return weights[(process.level_of(noisy.z) > 0) & (unsqueeze_times(noisy.measure) > 0)]


def level_sums(
    process: dd.processes.ForwardProcess,
    losses: Float[Tensor, "B L"],
    noisy: NoisyBatch,
) -> Float[Tensor, "n 2"]:
    """Sum the loss and the number of tokens that count, for every level of the noise."""
    level = process.level_of(noisy.z).flatten()
    sums = torch.zeros(len(process.levels), 2, dtype=torch.float64, device=noisy.z.device)
    values = torch.stack([losses.detach().flatten().double(), noisy.mask.flatten().double()], -1)
    return sums.index_add_(0, level, values)
