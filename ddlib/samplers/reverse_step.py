"""Reverse steps: new states given the new levels, which is the part that depends on the network."""

from collections.abc import Iterable

import torch

from ddlib.processes import LevelProcess, identity
from ddlib.samplers.base import SamplingContext, level_process
from ddlib.samplers.runtime.model import Predictions
from ddlib.samplers.state_draws import Noise
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand


def reverse_step(run: SamplingContext, z: Tokens, t: Times, s: Times, force: bool) -> Tokens:
    """Draw z_s ~ q(z_s | z_t, p): in a ``LevelProcess`` levels first, then the network where they
    change.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times, or (B, L).
        s: earlier times.
        force: see ``ForwardProcess.sample_given_level``.
    """
    process = run.process
    if isinstance(process, LevelProcess):
        return move(run, z, t, process.sample_level(z, t, s, run.generator), force)
    noise = process.draw_uniforms(z, run.generator)
    logits = run.predict(z, t)
    after = process.sample_posterior(logits, z, t, s, noise, force=force, sharpen=run.sharpen)
    run.observer.note_posterior(run, logits, z, t, s, after)
    return after


def step_by_guidance(run: SamplingContext, z: Tokens, t: Times, s: Times) -> Tokens:
    """Draw z_s from ``step_distribution`` of the denoiser.

    In a process with levels, given the levels at s.

    It is evaluated at sequences in which a position moves. The prompt does not move.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times.
        s: (B,) earlier times.
    """
    process = run.process
    with_levels = isinstance(run.process, LevelProcess)
    target = level_process(run).sample_level(z, t, s, run.generator) if with_levels else z
    u = rand(z.shape, run.generator, z.device)
    moves = run.free & (target != process.level_of(z)) if with_levels else run.free
    if not bool(moves.any()):
        return z
    rows = moves.any(-1) if run.network.compact else torch.ones_like(moves[:, 0])
    log_probs = run.network.step_log_probs(z, t, s, rows)
    moving = moves[rows]
    if with_levels:
        level = process.level_of(torch.arange(process.num_states, device=z.device)[None])[0]
        log_probs = log_probs.masked_fill(level != target[rows][..., None], -torch.inf)
    drawn = z[rows]
    result = z.clone()
    drawn[moving] = draw_logits(log_probs[moving], u[rows][moving])
    result[rows] = drawn
    return result


def draw_noise(run: SamplingContext, force: bool, single: bool = False) -> Noise:
    """Draw the uniforms of a step.

    Args:
        run: the call of ``sample``.
        force: see ``ForwardProcess.sample_given_level``.
        single: True if each position descends at most one edge.
    """
    shape = run.free.shape
    device = run.free.device
    # truncation is that of the distribution of the state that is reached
    single = single or run.sharpen is not identity
    state = rand(shape, run.generator, device)
    number = 0 if single else run.draws.num_child_draws(run.network, force)
    more = (*shape, number)
    return Noise(state, rand(more, run.generator, device) if number else state.new_empty(more))


def move(run: SamplingContext, z: Tokens, t: Times, target: Tokens, force: bool) -> Tokens:
    """Draw the states at an earlier time, given their levels.

    Each moving position is drawn as a separate sequence of length 1. The network runs on sequences
    with moving positions only, and not at all without any.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times, or (B, L).
        target: (B, L) new levels; a position that keeps its level keeps its state.
        force: see ``ForwardProcess.sample_given_level``.
    """
    level = run.process.level_of(z)
    target = torch.where(run.free, target, level)
    noise = draw_noise(run, force)
    return draw_states(run, run.network.at(z, t, target != level), z, target, noise, force)


def shift(run: SamplingContext, z: Tokens, t: Times, target: Tokens, force: bool) -> Tokens:
    """Draw the states given levels that may be higher too, as ``move``.

    Ascents do not need the network.
    """
    level = run.process.level_of(z)
    target = torch.where(run.free, target, level)
    lower = target.minimum(level)
    noise = draw_noise(run, force)
    # always drawn, so that a sequence's noise does not depend on the other sequences
    ascended = level_process(run).ascend(z, target.maximum(level), run.generator)
    moved = draw_states(run, run.network.at(z, t, lower != level), z, lower, noise, force)
    return torch.where(target > level, ascended, moved)


def draw_states(
    run: SamplingContext,
    predictions: Iterable[Predictions],
    z: Tokens,
    target: Tokens,
    noise: Noise,
    force: bool,
) -> Tokens:
    """Draw the states at the positions of the predictions, as in ``move``.

    Args:
        run: the call of ``sample``.
        predictions: model output at the moving positions.
        z: (B, L) states.
        target: (B, L) new levels.
        noise: uniforms at all positions, (B, L).
        force: see ``ForwardProcess.sample_given_level``.
    """
    result = z.clone()
    for part, states in run.draws.states(predictions, z, target, noise, force, run.sharpen):
        run.observer.note_states(run, part, states, force)
        result[part.b, part.i] = states
    return result
