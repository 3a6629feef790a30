"""What the network's output means.

The closed forms plug the network's law in as if it were a law of clean words: ``q_t(z|p) = sum_x p(x) q_t(z|x)``. The
best such law is the *cavity*, p(x | the other positions), without the evidence of the position itself. A network
trained by cross-entropy on noisy text gives the *posterior*, p(x | all positions). They agree for masks and plain
hierarchies and differ for xi < 1 and uniform noise; ``posterior = normalise(cavity * q_t(z|.))`` converts exactly.
"""

import torch

from ddlib.checks import check_devices, check_finite, check_logits, require
from ddlib.processes import ForwardProcess
from ddlib.typing import Logits, Times, Tokens

_IMPOSSIBLE = -1e30  # finite, so that a cluster in which every word is impossible gives no NaN gradient


def _cavity(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    return logits


def _posterior(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    likelihood = process.word_likelihood(z, t)
    log_likelihood = torch.where(likelihood > 0, likelihood, 1.0).log().to(logits.dtype)
    return torch.where(likelihood > 0, logits.log_softmax(-1) - log_likelihood, _IMPOSSIBLE)


_PARAMETERIZATIONS = {"cavity": _cavity, "posterior": _posterior}


def check_parameterization(parameterization: str) -> None:
    """Raises ValueError for an unknown name."""
    require(
        parameterization in _PARAMETERIZATIONS,
        f"parameterization is {parameterization!r}, must be one of {', '.join(map(repr, _PARAMETERIZATIONS))}",
    )


def cavity_logits(
    process: ForwardProcess, logits: Logits, z: Tokens, t: Times, parameterization: str = "cavity"
) -> Logits:
    """Checked logits of the cavity law, in float32 or float64, whatever the network's parameterization.

    Args:
        process: the forward process.
        logits: (B, L, V) what the network said; half precision is raised to float32. Never modified.
        z: (B, L) the noisy states it said it about.
        t: (B,) their times.
        parameterization: "cavity" (the papers') or "posterior" (what cross-entropy learns).

    Raises:
        ValueError: unknown parameterization, vocabulary mismatch, NaN or +inf logits.
    """
    check_parameterization(parameterization)
    check_logits(logits, z.shape, process.vocab_size)
    check_devices(logits=logits, z=z)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    check_finite(logits)
    return _PARAMETERIZATIONS[parameterization](process, logits, z, t)


def posterior_logits(process: ForwardProcess, logits: Logits, z: Tokens, t: Times) -> Logits:
    """Log of ``cavity * q_t(z|.)``, unnormalised: -inf at words from which ``z`` cannot come.

    Raises:
        TypeError, ValueError: as ``cavity_logits``; states or times out of range.
    """
    process.check_inputs(z=z, t=t)
    check_logits(logits, z.shape, process.vocab_size)
    check_finite(logits)
    return logits.log_softmax(-1) + process.word_likelihood(z, t).log().to(logits.dtype)
