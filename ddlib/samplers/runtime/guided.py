"""Steps whose law the denoiser tells itself, where no law of words does."""

import torch

from ddlib.processes import LevelProcess
from ddlib.samplers.base import Sampler, SamplingContext
from ddlib.samplers.runtime.model import ModelWrapper
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand


def check_guided(network: ModelWrapper, sampler: Sampler, plain: bool) -> None:
    """Raises TypeError where the denoiser tells the law of z_s, and the sampler or the knobs cannot use it.

    Args:
        network: of a call of ``sample``.
        sampler: its sampler.
        plain: whether all knobs of laws are at their defaults.
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
    """Draw z_s from ``step_distribution`` of the denoiser, in the levels of s where these do not depend on it.

    It is asked about sequences in which a position moves, and the prompt does not.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times.
        s: (B,) earlier times.
    """
    process, tell = run.process, run.network.step_distribution
    assert tell is not None
    target = process.sample_level(z, t, s, run.generator) if isinstance(process, LevelProcess) else None
    u = rand(z.shape, run.generator, z.device)
    moves = run.free if target is None else run.free & (target != process.level_of(z))
    if not bool(moves.any()):
        return z
    kept = moves.any(-1) if run.network.compact else torch.ones_like(moves[:, 0])
    law, going = tell(z[kept], t[kept], s[kept]), moves[kept]
    if target is not None:
        level = process.level_of(torch.arange(process.num_states, device=z.device)[None])[0]
        law = law.masked_fill(level != target[kept][..., None], -torch.inf)
    landed, result = z[kept], z.clone()
    landed[going] = draw_logits(law[going], u[kept][going])
    result[kept] = landed
    return result
