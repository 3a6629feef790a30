"""Integrand of the bound from marginals and rates alone, dense in the states."""

from typing import Any

import torch

from ddlib.processes.broadcasting import interior
from ddlib.typing import Logits, PerToken, Times, Tokens


def dense_integrand(process: Any, logits: Logits, x: Tokens, z: Tokens, t: Times) -> PerToken:
    r"""Integrand of the bound of any process: :math:`\sum_{y \ne z} Q_t(y, z)\, D(a_y, b_y)`, (B,
    L) nats.

    With :math:`a_y = q_t(y|x)/q_t(z|x)`, :math:`b_y = q_t(y|p)/q_t(z|p)` and :math:`D(a,b) = a
    \log(a/b) - a + b` (theory section 1). Infinite where the model gives z the probability 0 in
    float64.

    Args:
        process: any process; no closed form of it is used.
        logits: (B, L, V) cavity logits.
        x: (B, L) clean tokens.
        z: (B, L) noisy states.
        t: (B,) times, or (B, L).
    """
    t = interior(t)
    p = logits.to(torch.float64).softmax(-1)
    noisy = process.marginal(x, t)
    predicted = process.predictive(p, t)
    index = z[..., None]
    predicted_z = predicted.gather(-1, index)
    possible = predicted_z > 0
    rates = process.rates_into(z, t).scatter(-1, index, 0.0)
    entered = rates > 0
    a = noisy / noisy.gather(-1, index)
    # elsewhere the ratio may be so large that its gradient is infinite, and times 0 NaN
    b = torch.where(entered, predicted, 0.0) / torch.where(possible, predicted_z, 1.0)
    flows = entered & ((a > 0) | (b > 0))
    both = flows & (a > 0)
    log_ratio = torch.where(both, a, 1.0).log() - torch.where(both, b, 1.0).log()
    # where q_t(z|x) is tiny, a may be infinite at states y whose rate into z is 0
    terms = torch.where(both, a, 0.0) * log_ratio + torch.where(flows, b - a, 0.0)
    value = (torch.where(flows, rates, 0.0) * terms).sum(-1).clamp_min(0)
    # the bound is infinite where the model gives z the probability 0 in float64; 0 / 0 would be NaN
    excluded = ~possible.squeeze(-1) & flows.any(-1)
    return torch.where(excluded, torch.inf, value).to(logits.dtype)
