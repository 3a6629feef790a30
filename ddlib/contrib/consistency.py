"""Consistency loss: a network's prediction at a time against an averaged network's prediction at an
earlier time.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.objective.training import mean_per_token, split_draw
from ddlib.paces import Draw
from ddlib.parameterization.logits import (
    Parameterization,
    cavity_logits,
    check_columns,
    layout_of,
    posterior_logits,
)
from ddlib.processes import ForwardProcess, unsqueeze_times
from ddlib.processes.base import check_process
from ddlib.typing import Logits, PaddingMask, PerToken, Times, Tokens
from ddlib.utils.random import Generator
from ddlib.utils.validation import check_devices, check_padding, check_times, due, refuse, require

SMOOTHING = 1e-4
"""Share of the uniform distribution in the target of ``reverse_kl``."""


def forward_kl(target: Tensor, log_probs: Tensor) -> PerToken:
    """KL(target || prediction), the only one of the divergences whose expected gradient is 0 at the
    exact network.
    """
    # 0 * -inf is NaN, in the gradient too
    possible = target > 0
    return (torch.xlogy(target, target) - target * torch.where(possible, log_probs, 0.0)).sum(-1)


def reverse_kl(target: Tensor, log_probs: Tensor) -> PerToken:
    """KL(prediction || target), the target mixed with ``SMOOTHING`` of the uniform distribution.

    Nearer to the data the target excludes tokens that the prediction must allow, so the divergence
    would be infinite without the mixture.
    """
    smooth = (1 - SMOOTHING) * target + SMOOTHING / target.shape[-1]
    probs = log_probs.exp()
    return (probs * (torch.where(probs > 0, log_probs, 0.0) - smooth.log())).sum(-1)


def jensen_shannon(target: Tensor, log_probs: Tensor) -> PerToken:
    """Jensen-Shannon divergence: mean of the KL of target and prediction to their mean, at most log
    2.
    """
    probs = log_probs.exp()
    mean = (target + probs) / 2
    log_mean = torch.where(mean > 0, mean, 1.0).log()
    ahead = torch.xlogy(target, target) - target * log_mean
    behind = probs * (torch.where(probs > 0, log_probs, 0.0) - log_mean)
    return (ahead + behind).sum(-1) / 2


DIVERGENCES: Mapping[str, Callable[[Tensor, Tensor], PerToken]] = MappingProxyType(
    {function.__name__: function for function in (forward_kl, reverse_kl, jensen_shannon)}
)
"""Divergences by name: functions of the target's probabilities and the prediction's
log-probabilities, (B, L, V).
"""


def divergence_of(name: str) -> Callable[[Tensor, Tensor], PerToken]:
    """Return the divergence of this name.

    Raises:
        ValueError: an unknown name; the message has the nearest one.
    """
    if name in DIVERGENCES:
        return DIVERGENCES[name]
    matches = get_close_matches(str(name), DIVERGENCES, 1, 0.4)
    nearest = f"; did you mean {matches[0]!r}?" if matches else ""
    raise ValueError(
        f"divergence is {name!r}, must be one of {', '.join(map(repr, DIVERGENCES))}{nearest}"
    )


def check_earlier(s: Times, t: Times, batch: int, length: int) -> None:
    """Raise unless ``s`` are times of the shape of ``t``, below it in every sequence and above it
    nowhere.

    Raises:
        TypeError: an integer dtype.
        ValueError: another shape, a time outside [0, 1], or s >= t; the message has the row and
            both times.
    """
    for name, times in (("t", t), ("s", s)):
        check_times(name, times, batch, length)
    require(
        s.shape == t.shape, f"s has shape {tuple(s.shape)}, must be that of t, {tuple(t.shape)}"
    )
    check_devices(s=s, t=t)
    if not due(s, t):
        return
    bad = ~(s < t) if t.ndim == 1 else ~(s <= t)
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        rule = "below" if t.ndim == 1 else "at most"
        index = ", ".join(map(str, where))
        refuse(f"s[{index}] = {s[where].item()} must be {rule} t[{index}] = {t[where].item()}")
    if t.ndim == 2 and bool((still := ~(s < t).any(1)).any()):
        row = int(still.nonzero()[0, 0])
        refuse(
            f"s[{row}] equals t[{row}] at every position, must be below it at one position or more"
        )


def bridge(
    process: ForwardProcess, x: Tokens, t: Times, s: Times, generator: Generator = None
) -> tuple[Tokens, Tokens]:
    r"""Draw one path of the process at two times s < t: (z_t, z_s) ~ q(z_t, z_s | x).

    This is the distribution of :math:`z_t \sim q_t(\cdot|x)`, then :math:`z_s \sim q(z_s | z_t,
    x)`, the posterior with the token known. It is drawn forwards, :math:`z_s \sim q_s(\cdot|x)` and
    then :math:`z_t \sim q_{t|s}(\cdot|z_s)`, which is the same since the process is a Markov chain,
    and needs no tensor of size (B, L, S) where the process has none.

    Args:
        process: the forward process.
        x: (B, L) clean tokens.
        t: (B,) times, or (B, L), one for each position.
        s: earlier times, of the shape of ``t``. With a time per position some may be equal: such
            positions stay.
        generator: source of randomness; with a ``KeyedGenerator`` a sequence's draws do not depend
            on its batch.

    Returns:
        z_t and z_s, (B, L) each.

    Raises:
        TypeError, ValueError: as ``process.sample``; s that is not below t, by row and values.

    Example:
        >>> import ddlib as dd
        >>> x, t, s = torch.tensor([[0, 3, 4]]), torch.tensor([0.9]), torch.tensor([0.2])
        >>> generator = torch.Generator().manual_seed(2)
        >>> z_t, z_s = bridge(dd.presets.mdlm(vocab_size=5), x, t, s, generator)
        >>> bool(((z_t == 5) | (z_s == x)).all())  # a state that is not a mask at t is not one at s
        True
    """
    check_process(process)
    process.check_inputs(x=x, t=t)
    check_earlier(s, t, *x.shape)
    z_s = process.sample(x, s, generator)
    return process.sample_forward(z_s, s, t, generator), z_s


def consistency_loss(
    process: ForwardProcess,
    logits: Logits,
    target_logits: Logits,
    x: Tokens,
    z_t: Tokens,
    t: Times | Draw,
    z_s: Tokens,
    s: Times,
    *,
    divergence: str = "forward_kl",
    mask: PaddingMask | None = None,
    parameterization: Parameterization = "cavity",
    reduction: str = "mean",
) -> Tensor:
    r"""Compute the divergence of the posterior at t from that of a teacher at s < t, in nats per
    token.

    With :math:`f(z, t) = p(x | z_t)` at each position, the posterior over tokens given all states,

    .. math:: D(\mathrm{stopgrad}\, f_{\mathrm{teacher}}(z_s, s) \,\|\, f(z_t, t)),
        \qquad (z_t, z_s) \sim q(\cdot|x)

    and the token itself is the target at s = 0 (theory section 19; arXiv 2605.00161). The exact
    posterior is a martingale, :math:`E[f(z_s, s) | z_t] = f(z_t, t)`. So with "forward_kl" the
    exact network has an expected gradient of 0, and no other. With "reverse_kl" and
    "jensen_shannon" the optimum is another: they favour tokens that are probable already.

    The optimum is a product of distributions of single positions. Positions that a sampler draws in
    parallel remain independent given z_t: the loss does not change that.

    Args:
        process: the forward process.
        logits: (B, L, V) logits of the network for ``z_t`` at ``t``, over tokens, or (B, L, S - 1)
            child logits.
        target_logits: logits of the teacher, e.g. an average of the network's weights, for ``z_s``
            at ``s``, in the same form. No gradient passes through them.
        x: (B, L) clean tokens: the target where s is 0.
        z_t: (B, L) noisy states at ``t``.
        t: (B,) times, or (B, L), one for each position; or a ``paces.Draw``, by whose weights the
            loss is multiplied.
        z_s: (B, L) states at ``s`` on the same path, from ``bridge``.
        s: earlier times, of the shape of ``t``.
        divergence: "forward_kl", "reverse_kl" or "jensen_shannon".
        mask: (B, L) bool, True at real tokens; other positions count neither in the mean nor in the
            gradient.
        parameterization: meaning of both logits, as in ``nelbo``.
        reduction: "mean" over tokens, or "none" for (B, L).

    Raises:
        TypeError, ValueError: as ``training_loss``; s that is not below t, by row and values; a
            teacher with another vocabulary; an unknown divergence.

    Example:
        >>> import ddlib as dd
        >>> process, x = dd.presets.mdlm(vocab_size=5), torch.tensor([[0, 3, 4]])
        >>> z_t, z_s = torch.tensor([[0, 5, 5]]), torch.tensor([[0, 3, 5]])
        >>> t, s, uniform = torch.tensor([0.8]), torch.tensor([0.4]), torch.zeros(1, 3, 5)
        >>> consistency_loss(process, uniform, uniform, x, z_t, t, z_s, s, reduction="none")
        tensor([[0.0000, 1.6094, 0.0000]])
    """
    compared = divergence_of(divergence)
    check_process(process)
    require(reduction in ("mean", "none"), f"reduction is {reduction!r}, must be 'mean' or 'none'")
    process.check_inputs(x=x)
    t, weight = split_draw(t)
    check_earlier(s, t, *x.shape)
    check_padding(x, mask)
    for states, times in ((z_t, t), (z_s, s)):
        process.check_inputs(x=x, z=states, t=times)
        process.check_noised(x, states, times, mask)
    _check_teacher(process, target_logits, x, parameterization)
    log_probs = _log_posterior(process, logits, z_t, t, parameterization)
    with torch.no_grad():
        target = (
            _log_posterior(process, target_logits, z_s, s, parameterization)
            .exp()
            .to(log_probs.dtype)
        )
        token = one_hot(x, process.vocab_size).to(target.dtype)
        target = torch.where(unsqueeze_times(s)[..., None] > 0, target, token)
    loss = compared(target, log_probs)
    if weight is not None:
        loss = loss * weight.to(loss.dtype)
    if reduction == "none":
        return loss if mask is None else torch.where(mask, loss, 0.0)
    return mean_per_token(loss, mask)


def _check_teacher(
    process: ForwardProcess, target_logits: Logits, x: Tokens, parameterization: Parameterization
) -> None:
    """Raise TypeError or ValueError, with the argument's name, unless the teacher's logits have the
    right form.
    """
    try:
        check_columns(process, layout_of(process, parameterization), target_logits, x.shape)
    except (TypeError, ValueError) as error:
        raise type(error)(f"target_logits, of the teacher: {error}") from error
    check_devices(x=x, target_logits=target_logits)


def _log_posterior(
    process: ForwardProcess,
    logits: Float[Tensor, "B L K"],
    z: Tokens,
    t: Times,
    parameterization: Parameterization,
) -> Logits:
    """Log-probabilities of the tokens given all states, (B, L, V).

    -inf at those from which ``z`` cannot come.
    """
    cavity = cavity_logits(process, logits, z, t, parameterization)
    return posterior_logits(process, cavity, z, t).log_softmax(-1)
