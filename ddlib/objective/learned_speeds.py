"""The loss of which learned speeds are taught: the bound, with a gradient that knows that they decide what is drawn."""

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.objective.bound import reconstruction
from ddlib.parameterization.logits import Parameterization, cavity_logits
from ddlib.processes import ForwardProcess
from ddlib.times import sample_times
from ddlib.times.draws import latest
from ddlib.typing import Denoiser, HasLevelWeights, PaddingMask, PerToken, Times, Tokens
from ddlib.utils.random import Generator, KeyedGenerator
from ddlib.utils.validation import check_count, check_devices, check_mask, require


def speed_loss(
    process: ForwardProcess,
    denoiser: Denoiser,
    x: Tokens,
    generator: Generator = None,
    *,
    draws: int = 2,
    mask: PaddingMask | None = None,
    parameterization: Parameterization = "cavity",
) -> Float64[Tensor, ""]:
    r"""An unbiased estimate of the bound in nats per token, whose gradient by learned speeds is unbiased as well.

    Speeds decide what the terms f of the bound count for and which states z are drawn. For a text and a time,

    .. math:: \nabla E_z f = E_z[\nabla f] + E_z[(f - b) \nabla \log q_t(z|x)]

    The first part is pathwise: weights, and rates of words where they have some. Of each of the ``draws`` of z the
    baseline b is the mean of the others (leave-one-out; Shi et al., 2024, appendix). Where levels move on their own
    the others tell more, what a level of this text costs: that part of the bound is differentiated in closed form, and
    the draw tells the rest alone. Texts tell each other nothing, so the gradient of a batch is that of its parts.
    ``dd.nelbo`` and ``training_loss`` pass on the pathwise part and nothing else, which is no gradient of the bound.

    The gradient by what the network consists of is that of the bound too, of as many draws. To teach the speeds alone
    give a denoiser that runs under ``torch.no_grad()``. The bound stays one whatever the speeds: those that avoid what
    a network is bad at are as good a choice as any.

    Args:
        process: one that has parameters, as ``Tree(..., learn_speeds=True)`` gives one.
        denoiser: ``(z, t) -> logits``; called once, with ``draws`` copies of each text.
        x: (B, L) clean words.
        generator: source of times and noise; with a ``KeyedGenerator`` the draws of a text do not depend on its batch.
        draws: of noise for each text and time, at least 2.
        mask: (B, L) bool, True at the tokens that count; padding is noised and seen all the same.
        parameterization: what the logits mean, as in ``nelbo``.

    Raises:
        TypeError, ValueError: as ``bound``; a process with nothing to learn, fewer than 2 draws, a bad mask; a speed
            that was learned to 0 or infinity.

    Example:
        >>> import ddlib as dd
        >>> process = dd.presets.hdlm([0, 0, 1, 1], gamma=2.0, learn_speeds=True)
        >>> x, knows_nothing = torch.zeros(64, 8, dtype=torch.int64), lambda z, t: torch.zeros(*z.shape, 4)
        >>> speed_loss(process, knows_nothing, x).backward()
        >>> process.hierarchy.learned.log.grad.shape
        torch.Size([2])
    """
    check_count("draws", draws, 2)
    require(
        any(parameter.requires_grad for parameter in process.parameters()),
        f"process is {process!r}, which has nothing to learn: make its tree or itself with learn_speeds=True",
    )
    process.check_inputs(x=x)
    if mask is not None:
        check_devices(x=x, mask=mask)
        check_mask("mask", mask, x.shape)
    # slow edges are left so late that float32 has no such times
    t = sample_times(len(x), generator=generator, device=x.device, dtype=torch.float64)
    told = torch.get_default_dtype()
    noise = generator.split(draws) if isinstance(generator, KeyedGenerator) else generator
    kept = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    x, t, kept = (each.repeat_interleave(draws, 0) for each in (x, t, kept))
    z = process.sample(x, t, noise)
    logits = cavity_logits(process, denoiser(z, t.to(told)), z, t, parameterization)
    nats = process.integrand(logits, x, z, t)
    total = _by_level(process, nats, x, z, t, kept, draws)
    if not process.exact_ends:
        start = torch.zeros_like(t)
        z = process.sample(x, start, noise)
        logits = cavity_logits(process, denoiser(z, start.to(told)), z, start, parameterization)
        total = total + _taught(process, reconstruction(process, logits, x, z, start), x, z, start, kept, draws)
    end = torch.full_like(t, latest(t.dtype))
    total = total + torch.where(kept, process.prior_kl(x, end), 0.0).sum(1)
    return total.sum() / kept.sum()


def _taught(
    process: ForwardProcess, nats: PerToken, x: Tokens, z: Tokens, t: Times, kept: PaddingMask, draws: int
) -> Float64[Tensor, "B"]:
    """``nats`` summed over each text, with a gradient that knows which z they make likely; copies of a text adjoin.

    The baseline is the mean of the other draws; with ``draws`` of 1 there is none.
    """
    value = torch.where(kept, nats, 0.0).sum(1).to(torch.float64)
    chance = process.likelihood(z, x, t).log().sum(1)
    found = value.detach().view(-1, draws)
    baseline = (found.sum(1, keepdim=True) - found) / max(draws - 1, 1)
    return value + (chance - chance.detach()) * (found - baseline).flatten()


def _by_level(
    process: ForwardProcess, nats: PerToken, x: Tokens, z: Tokens, t: Times, kept: PaddingMask, draws: int
) -> Float64[Tensor, "B"]:
    """The same, where levels have weights of their own by what a level costs in the other draws of the text.

    The mean of that over noise is known: occupancies times weights times costs. What is left has a mean of about 0 and
    gets no baseline, which would depend on the draw itself: its levels tell what is left of the others.
    """
    if not isinstance(process, HasLevelWeights):
        return _taught(process, nats, x, z, t, kept, draws)
    weights, level = process.weights(t), process.level_of(z)
    weight = weights.gather(1, level)
    with torch.no_grad():
        cost = torch.where(weight > 0, nats / torch.where(weight > 0, weight, 1.0), 0.0)
        sums = torch.zeros(2, *weights.shape, dtype=torch.float64, device=z.device)
        sums.scatter_add_(2, level.expand(2, -1, -1), torch.stack([cost * kept, kept.to(cost)]))
        copies = sums.view(2, -1, draws, weights.shape[1])
        nats_of, tokens_of = (copies.sum(2, keepdim=True) - copies).flatten(1, 2)
        mean = torch.where(tokens_of > 0, nats_of / tokens_of.clamp_min(1.0), 0.0)
    expected = (process.occupancies(t) * weights * mean).sum(1) * kept.sum(1)
    return expected + _taught(process, nats.double() - weight * mean.gather(1, level), x, z, t, kept, 1)
