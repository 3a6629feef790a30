"""Reverse steps for guidance that defines the transition distribution directly."""

import torch

from ddlib.processes import LevelProcess
from ddlib.samplers.base import Sampler, SamplingContext
from ddlib.samplers.runtime.model import ModelWrapper
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand


def check_guided(network: ModelWrapper, sampler: Sampler, plain: bool) -> None:
    """Raise TypeError for a denoiser with a step distribution that the sampler or the options do not support.

    Args:
        network: the model wrapper of a call of ``sample``.
        sampler: the sampler.
        plain: whether all options that change token distributions have their defaults.
    """
    if network.step_distribution is None:
        return
    if not sampler.supports_step_distribution:
        raise TypeError(
            f"{sampler!r} draws by laws of words, {network.denoiser!r} steers the law of z_s: Ancestral() draws from "
            "it, and on='words' serves every sampler"
        )
    if not plain:
        raise TypeError(
            "temperature, top_p, forbidden and their like act on laws of words, which nothing is drawn from here: "
            f"{network.denoiser!r} steers the law of z_s; leave them as they are, or steer on='words'"
        )


def guided_step(run: SamplingContext, z: Tokens, t: Times, s: Times) -> Tokens:
    """Draw z_s from ``step_distribution`` of the denoiser; in a process with levels, given the levels at s.

    It is evaluated at sequences in which a position moves. The prompt does not move.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times.
        s: (B,) earlier times.
    """
    process, step_distribution = run.process, run.network.step_distribution
    assert step_distribution is not None
    target = process.sample_level(z, t, s, run.generator) if isinstance(process, LevelProcess) else None
    u = rand(z.shape, run.generator, z.device)
    moves = run.free if target is None else run.free & (target != process.level_of(z))
    if not bool(moves.any()):
        return z
    kept = moves.any(-1) if run.network.compact else torch.ones_like(moves[:, 0])
    log_probs, moving = step_distribution(z[kept], t[kept], s[kept]), moves[kept]
    if target is not None:
        level = process.level_of(torch.arange(process.num_states, device=z.device)[None])[0]
        log_probs = log_probs.masked_fill(level != target[kept][..., None], -torch.inf)
    drawn, result = z[kept], z.clone()
    drawn[moving] = draw_logits(log_probs[moving], u[kept][moving])
    result[kept] = drawn
    return result
