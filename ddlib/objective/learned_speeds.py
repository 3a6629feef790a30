"""Loss for learned speeds: the bound, with a gradient through the distribution of the noise."""

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.objective.bound import reconstruction
from ddlib.parameterization.capabilities import Capabilities
from ddlib.parameterization.logits import Parameterization, cavity_logits
from ddlib.processes import ForwardProcess
from ddlib.processes.broadcasting import quotient
from ddlib.times import sample_times
from ddlib.times.draws import latest
from ddlib.typing import Denoiser, HasLevelWeights, PaddingMask, PerToken, Times, Tokens
from ddlib.utils.random import Generator, KeyedGenerator
from ddlib.utils.validation import check_count, check_padding, require


def speed_loss(
    process: ForwardProcess,
    denoiser: Denoiser,
    x: Tokens,
    generator: Generator = None,
    *,
    draws: int = 2,
    mask: PaddingMask | None = None,
    parameterization: Parameterization | None = None,
) -> Float64[Tensor, ""]:
    r"""Estimate the bound in nats per token without bias, with an unbiased gradient by learned
    speeds too.

    Speeds determine the weights of the terms f of the bound and the distribution of the states z.
    For a sequence and a time,

    .. math:: \nabla E_z f = E_z[\nabla f] + E_z[(f - b) \nabla \log q_t(z|x)]

    The first part is pathwise: through weights, and through rates of tokens. The baseline b of each
    of the ``draws`` of z is the mean of the other draws (leave-one-out; Shi et al., 2024,
    appendix). Where levels are a Markov chain the other draws also estimate the divergence of each
    level: that part of the bound is differentiated in closed form, and the draw contributes the
    remainder alone. Sequences share no baseline, so the gradient of a batch is the mean of the
    gradients of its parts, weighted by tokens. ``dd.nelbo`` and ``training_loss`` have the pathwise
    part of the gradient alone, which is not a gradient of the bound.

    The gradient by the network's parameters is that of the bound too, over all draws. To train the
    speeds alone pass a denoiser that runs under ``torch.no_grad()``. The bound is valid for any
    speeds, also for those that avoid states at which the network is poor.

    Args:
        process: a process with parameters, such as one over ``Tree(..., learn_speeds=True)``.
        denoiser: ``(z, t) -> logits``; called once, with ``draws`` copies of each sequence.
        x: (B, L) clean tokens.
        generator: source of times and noise; with a ``KeyedGenerator`` the draws of a sequence do
            not depend on its batch.
        draws: number of draws of noise for each sequence and time, at least 2.
        mask: (B, L) bool, True at the tokens that count; padding is noised too and is an input of
            the denoiser.
        parameterization: meaning of the logits, as in ``nelbo``; by default the denoiser's
            attribute of that name, or "cavity" without one.

    Raises:
        TypeError, ValueError: as ``bound``; a process without learned speeds, fewer than 2 draws, a
            bad mask; a learned speed that is 0 or infinite.

    Example:
        >>> import ddlib as dd
        >>> process = dd.presets.hdlm([0, 0, 1, 1], gamma=2.0, learn_speeds=True)
        >>> x, uniform = torch.zeros(64, 8, dtype=torch.int64), lambda z, t: torch.zeros(*z.shape, 4)
        >>> speed_loss(process, uniform, x).backward()
        >>> process.hierarchy.learned.log.grad.shape
        torch.Size([2])
    """
    check_count("draws", draws, 2)
    require(
        any(parameter.requires_grad for parameter in process.parameters()),
        f"process is {process!r}, which has no learned parameters: create the process or its tree "
        "with "
        "learn_speeds=True",
    )
    process.check_inputs(x=x)
    check_padding(x, mask)
    meaning = Capabilities.of(denoiser).meaning(parameterization)
    # jumps along slow edges may be later than the last float32 time before 1
    t = sample_times(len(x), generator=generator, device=x.device, dtype=torch.float64)
    dtype = torch.get_default_dtype()
    noise = generator.split(draws) if isinstance(generator, KeyedGenerator) else generator
    kept = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    x, t, kept = (each.repeat_interleave(draws, 0) for each in (x, t, kept))
    z = process.sample(x, t, noise)
    logits = cavity_logits(process, denoiser(z, t.to(dtype)), z, t, meaning)
    nats = process.integrand(logits, x, z, t)
    total = _by_level(process, nats, x, z, t, kept, draws)
    if not process.exact_ends:
        start = torch.zeros_like(t)
        z = process.sample(x, start, noise)
        logits = cavity_logits(process, denoiser(z, start.to(dtype)), z, start, meaning)
        left = reconstruction(process, logits, x, z, start)
        total = total + _with_score_gradient(process, left, x, z, start, kept, draws)
    end = torch.full_like(t, latest(t.dtype))
    total = total + torch.where(kept, process.prior_kl(x, end), 0.0).sum(1)
    return total.sum() / kept.sum()


def _with_score_gradient(
    process: ForwardProcess,
    nats: PerToken,
    x: Tokens,
    z: Tokens,
    t: Times,
    kept: PaddingMask,
    draws: int,
) -> Float64[Tensor, "B"]:
    """Sum ``nats`` over each sequence, with the score-function gradient of z.

    Copies of a sequence adjoin.

    The baseline is the mean of the other draws; with ``draws`` of 1 there is none.
    """
    value = torch.where(kept, nats, 0.0).sum(1).to(torch.float64)
    log_prob = process.likelihood(z, x, t).log().sum(1)
    values = value.detach().view(-1, draws)
    baseline = (values.sum(1, keepdim=True) - values) / max(draws - 1, 1)
    return value + (log_prob - log_prob.detach()) * (values - baseline).flatten()


def _by_level(
    process: ForwardProcess,
    nats: PerToken,
    x: Tokens,
    z: Tokens,
    t: Times,
    kept: PaddingMask,
    draws: int,
) -> Float64[Tensor, "B"]:
    """``_with_score_gradient`` with, where levels have weights, each level's mean divergence as a
    control variate.

    The divergence of a level is estimated from the other draws of the sequence. Its mean over noise
    is known: occupancies times weights times divergences. The remainder has a mean of about 0. It
    has no leave-one-out baseline, which would be biased: the control variate of each draw contains
    the other draws.
    """
    if not isinstance(process, HasLevelWeights):
        return _with_score_gradient(process, nats, x, z, t, kept, draws)
    weights = process.weights(t)
    level = process.level_of(z)
    weight = weights.gather(1, level)
    with torch.no_grad():
        divergence = quotient(nats, weight)
        sums = torch.zeros(2, *weights.shape, dtype=torch.float64, device=z.device)
        sums.scatter_add_(
            2, level.expand(2, -1, -1), torch.stack([divergence * kept, kept.to(divergence)])
        )
        copies = sums.view(2, -1, draws, weights.shape[1])
        nats_of, tokens_of = (copies.sum(2, keepdim=True) - copies).flatten(1, 2)
        mean = torch.where(tokens_of > 0, nats_of / tokens_of.clamp_min(1.0), 0.0)
    expected = (process.occupancies(t) * weights * mean).sum(1) * kept.sum(1)
    return expected + _with_score_gradient(
        process, nats.double() - weight * mean.gather(1, level), x, z, t, kept, 1
    )
