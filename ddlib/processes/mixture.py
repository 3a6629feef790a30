"""What a token is after mixing, and how far the truth and a model are apart on it."""

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes.broadcasting import beside
from ddlib.typing import PerToken, Tokens


class Mixture(NamedTuple):
    """What a token is after mixing: probabilities in float64, of the shape of times; ``keep + V word + mask = 1``."""

    keep: Tensor
    """It was never redrawn."""
    word: Tensor
    """It was redrawn and is a given word; the same for each."""
    mask: Tensor
    """It was redrawn and is the mask; 0 in processes without one."""


def compared(
    mixture: Mixture, log_px: PerToken, log_pz: PerToken, others: PerToken, x: Tokens, z: Tokens
) -> tuple[PerToken, PerToken]:
    """KL(q(.|x) || q(.|p)), and log q(z|x) / q(z|p) where z is a word.

    Args:
        mixture: what became of each text's tokens, or of each token.
        log_px: (B, L) log p(x).
        log_pz: (B, L) log p(z); of any word at masks.
        others: (B, L) sum of log(1 + ratio p(.)) over words but x, with the ratio of ``log_ratio``.
        x: (B, L) clean words.
        z: (B, L) noisy states.
    """
    keep, word, _ = (beside(v).to(others.dtype) for v in mixture)
    ratio = beside(log_ratio(mixture)).to(others.dtype)
    short = falls_short(ratio, log_px)
    return (keep + word) * short - word * others, torch.where(z == x, short, -log1p_exp(ratio + log_pz))


def falls_short(ratio: Tensor, log_px: Tensor) -> Tensor:
    """log (1 + r) / (1 + r p(x)), by how much a model's odds of having kept x, of log ``ratio``, are below the truth's.

    It is log(1 + r (1 - p(x)) / (1 + r p(x))), in which nothing cancels.
    """
    missed = torch.expm1(log_px.clamp_max(-torch.finfo(log_px.dtype).tiny)).neg().log()
    return log1p_exp(ratio - log1p_exp(ratio + log_px) + missed)


def log_ratio(mixture: Mixture) -> Float64[Tensor, "*n"]:
    """Log of the probability of having kept a word over that of having drawn it afresh; finite.

    An infinite one would turn to NaN where it meets itself; beyond e^745 no float64 tells.
    """
    return (mixture.keep.log() - mixture.word.log()).clamp(-1e4, 745.0)


def log1p_exp(x: Tensor, out: Tensor | None = None) -> Tensor:
    """log(1 + e^x), in ``out`` if given, even x; beyond the threshold x itself is nearer than the next number."""
    if out is None:
        return torch.nn.functional.softplus(x, threshold=50.0)
    return torch.ops.aten.softplus.out(x, 1.0, 50.0, out=out)
