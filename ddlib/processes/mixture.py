"""State of a position under interpolating noise, and the divergence of a model from the truth on
it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes.broadcasting import unsqueeze_times
from ddlib.typing import Logits, PerToken, Tokens


class Mixture(NamedTuple):
    """Probabilities of a position's state, float64, of the shape of times.

    ``keep + V token + mask = 1``.
    """

    keep: Tensor
    """Probability that it was never resampled."""
    token: Tensor
    """Probability that it was resampled and is a given token; the same for each token."""
    mask: Tensor
    """Probability that it was resampled and is the mask; 0 in processes without a mask."""


def compare(
    mixture: Mixture, log_px: PerToken, log_pz: PerToken, others: PerToken, x: Tokens, z: Tokens
) -> tuple[PerToken, PerToken]:
    """Compute KL(q(.|x) || q(.|p)), and log q(z|x) / q(z|p) where z is a token.

    Args:
        mixture: of each sequence, or of each position.
        log_px: (B, L) log p(x).
        log_pz: (B, L) log p(z); of any token at masks.
        others: (B, L) sum of log(1 + ratio p(.)) over tokens other than x, with the ratio of
            ``log_ratio``.
        x: (B, L) clean tokens.
        z: (B, L) noisy states.
    """
    keep, token, _ = (unsqueeze_times(v).to(others.dtype) for v in mixture)
    ratio = unsqueeze_times(log_ratio(mixture)).to(others.dtype)
    short = falls_short(ratio, log_px)
    return (keep + token) * short - token * others, torch.where(
        z == x, short, -log1p_exp(ratio + log_pz)
    )


def sum_of_others(ratio: Float64[Tensor, "*n"], log_p: Logits, x: Tokens) -> PerToken:
    """Compute ``others`` of ``compare``, in the dtype of ``log_p``."""
    log_ratios = log1p_exp(unsqueeze_times(ratio).to(log_p.dtype)[..., None] + log_p)
    return log_ratios.scatter(-1, x[..., None], 0.0).sum(-1)


def choice_kl(
    stay: PerToken, resample: PerToken, log_stay_p: PerToken, log_odds: PerToken, same: Tensor
) -> PerToken:
    r"""Compute KL(e_x || e_p) for the probabilities that a token was resampled in a step.

    .. math:: \log(1 - e_x + e_x \rho) - e_x \log \rho, \qquad \rho = q_s(z|x) / q_s(z|p)

    Args:
        stay: (B, L) probability given x of the state z, kept since s.
        resample: (B, L) probability of z, resampled since s.
        log_stay_p: (B, L) log-probability given p that z is a token never resampled.
        log_odds: (B, L) log rho.
        same: (B, L) bool, True where z is x.
    """
    total = (resample + stay).clamp_min(torch.finfo(torch.float64).tiny)
    log_total = total.log()
    kept_token = (
        torch.logaddexp(stay.log() - log_total, resample.log() - log_total + log_odds)
        - resample / total * log_odds
    )
    # the same for rho <= 1; at s = 0 rho is 0, and so is the probability to have stayed
    other_token = log1p_exp(log_stay_p - log_total) + stay / total * log_odds
    return torch.where(same, kept_token, other_token).clamp_min(0)


def falls_short(ratio: Tensor, log_px: Tensor) -> Tensor:
    """Compute log((1 + r) / (1 + r p(x))) for r = exp(``ratio``): log q(x|x) / q(x|p) in a
    ``Mixture``.

    It is computed as log(1 + r (1 - p(x)) / (1 + r p(x))), in which nothing cancels.
    """
    log_other = torch.expm1(log_px.clamp_max(-torch.finfo(log_px.dtype).tiny)).neg().log()
    return log1p_exp(ratio - log1p_exp(ratio + log_px) + log_other)


def log_ratio(mixture: Mixture) -> Float64[Tensor, "*n"]:
    """Compute the log of the probability that a token was kept over the probability that it was
    drawn again, limited to a finite value.

    Infinite values would give NaN in differences. Ratios beyond e^745 are not distinguished in
    float64.
    """
    return (mixture.keep.log() - mixture.token.log()).clamp(-1e4, 745.0)


def log1p_exp(x: Tensor, out: Tensor | None = None) -> Tensor:
    """Compute log(1 + e^x), into ``out`` if given, which may be x.

    Above the threshold x is the nearest float.
    """
    if out is None:
        return torch.nn.functional.softplus(x, threshold=50.0)
    return torch.ops.aten.softplus.out(x, 1.0, 50.0, out=out)
