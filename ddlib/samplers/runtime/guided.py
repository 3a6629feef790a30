"""Steps whose law the denoiser tells itself, where no law of words does."""

import torch

from ddlib.samplers.base import Run, Sampler
from ddlib.samplers.runtime.model import Network
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand


def check_guided(network: Network, sampler: Sampler, plain: bool) -> None:
    """Raises TypeError where the denoiser tells the law of z_s, and the sampler or the knobs cannot use it.

    Args:
        network: of a call of ``sample``.
        sampler: its sampler.
        plain: whether all knobs of laws are at their defaults.
    """
    if network.step_law is None:
        return
    if not sampler.by_steps:
        raise TypeError(
            f"{sampler!r} draws by laws of words, {network.denoiser!r} steers the law of z_s: Ancestral() draws from "
            "it, and on='words' serves every sampler"
        )
    if not plain:
        raise TypeError(
            "temperature, top_p, forbidden and their like act on laws of words, which nothing is drawn from here: "
            f"{network.denoiser!r} steers the law of z_s; leave them as they are, or steer on='words'"
        )


def land(run: Run, z: Tokens, t: Times, s: Times) -> Tokens:
    """Draws z_s by ``step_law`` of the denoiser; in the levels that they go to, if that is known before it is asked.

    It is asked about sequences in which a position moves, and the prompt does not.

    Args:
        run: the call of ``sample``.
        z: (B, L) states at ``t``.
        t: (B,) times.
        s: (B,) earlier times.
    """
    process, tell = run.process, run.network.step_law
    assert tell is not None
    target = process.jump(z, t, s, run.generator)
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
