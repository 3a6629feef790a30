"""The one bound: -log p(x) <= E[nelbo], for every process."""

from collections.abc import Callable

import torch
from torch import Tensor

from ddlib.parameterization.logits import Parameterization, cavity_logits
from ddlib.processes import ForwardProcess
from ddlib.processes.base import beside, interior
from ddlib.typing import Logits, PerToken, Times, Tokens
from ddlib.utils.validation import require, visible


def generic_nelbo(process: ForwardProcess, logits: Logits, x: Tokens, z: Tokens, t: Times) -> PerToken:
    r"""The bound's integrand from the contract alone: :math:`\sum_{y \ne z} Q_t(y, z)\, D(a_y, b_y)`.

    With :math:`a_y = q_t(y|x)/q_t(z|x)`, :math:`b_y = q_t(y|p)/q_t(z|p)` and :math:`D(a,b) = a \log(a/b) - a + b`
    (theory section 1). Dense in the states; ``logits`` are of the cavity law. Infinite where the model gives z the
    probability 0 in float64.
    """
    t = interior(t)
    p = logits.to(torch.float64).softmax(-1)
    noisy, believed = process.marginal(x, t), process.predictive(p, t)
    here = z[..., None]
    ours = believed.gather(-1, here)
    possible = ours > 0
    a, b = noisy / noisy.gather(-1, here), believed / torch.where(possible, ours, 1.0)
    rates = process.rates_into(z, t).scatter(-1, here, 0.0)
    flows = (rates > 0) & ((a > 0) | (b > 0))
    both = flows & (a > 0)
    log_ratio = torch.where(both, a, 1.0).log() - torch.where(both, b, 1.0).log()
    # a state of hardly any probability has infinite a at states that it is never left for
    terms = torch.where(both, a, 0.0) * log_ratio + torch.where(flows, b - a, 0.0)
    value = (torch.where(flows, rates, 0.0) * terms).sum(-1).clamp_min(0)
    # a state that the model excludes, in float64, has no finite bound: 0 / 0 would be NaN
    excluded = ~possible.squeeze(-1) & flows.any(-1)
    return torch.where(excluded, torch.inf, value).to(logits.dtype)


def closed_nelbo(process: ForwardProcess, logits: Logits, x: Tokens, z: Tokens, t: Times) -> PerToken:
    """The bound's integrand by the process's closed form where it has one, else ``generic_nelbo``."""
    closed = process.weighted_divergence(logits, x, z, t)
    return generic_nelbo(process, logits, x, z, t) if closed is None else closed[0] * closed[1]


_METHODS: dict[str, Callable[[ForwardProcess, Logits, Tokens, Tokens, Times], Tensor]] = {
    "auto": closed_nelbo,
    "generic": generic_nelbo,
}


def nelbo(
    process: ForwardProcess,
    logits: Logits,
    x: Tokens,
    z: Tokens,
    t: Times,
    method: str = "auto",
    parameterization: Parameterization = "cavity",
) -> PerToken:
    r"""The integrand of the negative evidence lower bound at (t, z), in nats per token, (B, L), >= 0.

    :math:`-\log p(x) \le E_{t \sim U(0,1),\, z \sim q_t(\cdot|x)}[\mathrm{nelbo}]` plus the end terms of ``bound``,
    which vanish when the schedule's ends are exact. Finite at the ends of time; computed in float32 or better.

    Args:
        process: the forward process.
        logits: (B, L, V) over words, or (B, L, S - 1) over states for child logits; any floating dtype; not modified.
        x: (B, L) clean words.
        z: (B, L) noisy states, drawn by ``process.sample(x, t)``.
        t: (B,) times in [0, 1], or (B, L), one for each position.
        method: "auto" for the closed form where the process has one, "generic" for the contract alone.
        parameterization: what the logits mean, "cavity", "posterior", "children" or a ``dd.Children``; see
            ``ddlib.parameterization.logits``.

    Raises:
        TypeError: wrong dtypes.
        ValueError: wrong shapes, tokens or times out of range, NaN logits, a vocabulary mismatch, a ``z`` that cannot
            come from ``x`` at ``t``, or an unknown method or parameterization.

    Example:
        >>> import ddlib as dd
        >>> process = dd.presets.mdlm(vocab_size=5)
        >>> x = torch.tensor([[0, 3, 4]])
        >>> dd.nelbo(process, torch.zeros(1, 3, 5), x, torch.tensor([[0, 5, 5]]), torch.tensor([0.5]))
        tensor([[0.0000, 3.2189, 3.2189]])
    """
    require(method in _METHODS, f"method is {method!r}, must be one of {', '.join(map(repr, _METHODS))}")
    check_noised(process, x, z, t)
    return _METHODS[method](process, cavity_logits(process, logits, z, t, parameterization), x, z, t)


def check_noised(process: ForwardProcess, x: Tokens, z: Tokens, t: Times) -> None:
    """Raises unless (x, z, t) are well formed and every z can come from its x at t."""
    process.check_inputs(x=x, z=z, t=t)
    if visible(z):
        impossible = process.likelihood(z, x, t) <= 0
        if bool(impossible.any()):
            b, i = (int(v) for v in impossible.nonzero()[0])
            raise ValueError(
                f"z[{b}, {i}] = {int(z[b, i])} has probability 0 given x[{b}, {i}] = {int(x[b, i])} "
                f"at t = {float(beside(t).expand_as(z)[b, i])}: z must be drawn by process.sample(x, t)"
            )
