"""Losses of post-training: rewards of sampled paths, and preferences (theory section 22)."""

from typing import cast

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import softplus

from ddlib.objective.bound import bound
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess
from ddlib.typing import Denoiser, PaddingMask, Tokens
from ddlib.utils.random import KeyedGenerator
from ddlib.utils.validation import check_count, check_flag, check_number, check_shape, require


def reward_loss(
    log_probs: Float[Tensor, "N B L"],
    recorded: Float[Tensor, "N B L"],
    rewards: Float[Tensor, "B"],
    *,
    group: int,
    clip: float | None = 0.2,
    beta: float = 0.0,
    kl: Float[Tensor, "N B"] | None = None,
    weight: float = 1.0,
    normalize: bool = False,
) -> Float64[Tensor, ""]:
    r"""Compute a loss whose gradient is that of the mean reward of sampled paths, negated.

    .. math::

        -\frac{1}{B} \sum_{i, k, l} \min(\rho A, \mathrm{clip}(\rho, 1 - c, 1 + c) A)
        + \frac{\beta}{B} \sum_{i, k} \mathrm{KL}_{ik}, \qquad
        A_{ik} = r_i - \beta \sum_{j > k} \mathrm{KL}_{ij} - b_i

    rho is the ratio of the present probability of a draw to the recorded one. The baseline b is the
    mean return of the other samples of the group, so the gradient is unbiased where all ratios are
    1, for the network as it is sampled. Later divergences belong to the return of a draw: without
    them the loss has another optimum. The value is 0 at equal networks.

    Args:
        log_probs: (N, B, L) of ``dd.log_prob(..., per_draw=True)``.
        recorded: (N, B, L) ``trajectory.log_probs``.
        rewards: (B,) rewards of the sequences.
        group: number of consecutive rows that answer one prompt, at least 2; divides B.
        clip: c, by which a ratio may leave 1 before its gradient ends (Schulman et al., 2017); None
            for no limit.
        beta: weight of the divergence from a reference.
        kl: (N, B) of ``dd.path_kl``; needed where ``beta`` is not 0.
        weight: ``trajectory.weight``, of a trajectory with chosen steps. Divergences need all.
        normalize: subtract the mean of the group, including the sample, and divide by the group's
            standard deviation (GRPO, Shao et al., 2024). This gradient is biased.

    Raises:
        TypeError, ValueError: other shapes; rewards that are not a floating-point tensor, or not
            finite; a group below 2 or that does not divide B; ``beta`` without ``kl``, or with
            chosen steps; numbers out of range.
    """
    _check_rewards(log_probs, recorded, rewards, group)
    check_flag("normalize", normalize)
    check_number("beta", beta, 0, 1e6, "in [0, 1e6]")
    if clip is not None:
        check_number("clip", clip, 1e-9, 1 - 1e-9, "in (0, 1), or None")
    returns = rewards.to(torch.float64)
    later = torch.zeros(log_probs.shape[:2], dtype=torch.float64, device=log_probs.device)
    penalty = torch.zeros((), dtype=torch.float64, device=log_probs.device)
    if beta:
        require(kl is not None, f"beta is {beta} and kl is None, must be that of dd.path_kl")
        require(
            weight == 1,
            f"weight is {weight}, must be 1: beta={beta} needs the steps of whole paths",
        )
        kl = cast(Tensor, kl)
        check_shape("kl", kl, tuple(log_probs.shape[:2]), "(N, B), as log_probs")
        total = beta * kl.detach().to(torch.float64)
        later = total.sum(0) - total.cumsum(0)
        returns = returns - total.sum(0)
        penalty = beta * kl.to(torch.float64).sum(0).mean()
    baseline, scale = _baseline(returns, group, normalize)
    advantage = (rewards - later - baseline) / scale
    ratio = (log_probs - recorded.detach()).to(torch.float64).exp()
    limited = ratio if clip is None else ratio.clamp(1 - clip, 1 + clip)
    advantage = advantage[..., None]
    # minus the advantage, so that positions that are not drawn, of ratio 1, have no term
    gain = torch.minimum(ratio * advantage, limited * advantage) - advantage
    return penalty - weight * gain.sum((0, 2)).mean()


def preference_loss(
    chosen: Float[Tensor, "B"], rejected: Float[Tensor, "B"], beta: float = 0.1
) -> Float64[Tensor, ""]:
    r"""Compute the loss of preferences between pairs of answers.

    .. math:: -\frac{1}{B} \sum \log \sigma(\beta (\log \rho_w - \log \rho_l))

    rho is the ratio of the probability of an answer under the network to that under a reference:
    of paths by ``dd.log_prob``, or estimated by ``dd.bound_log_ratio`` with one seed for both
    answers (DPO, Rafailov et al., 2023).

    Args:
        chosen: (B,) log-ratios of the preferred answers.
        rejected: (B,) log-ratios of the others.
        beta: strength of the preference, above 0.

    Raises:
        TypeError, ValueError: other shapes; ``beta`` out of range.
    """
    check_shape("chosen", chosen, (None,), "(B,)")
    check_shape("rejected", rejected, tuple(chosen.shape), "that of chosen")
    check_number("beta", beta, 1e-9, 1e6, "in (0, 1e6]")
    return softplus(-beta * (chosen - rejected).to(torch.float64)).mean()


def bound_log_ratio(
    process: ForwardProcess,
    denoiser: Denoiser,
    reference: Denoiser,
    x: Tokens,
    *,
    draws: int = 1,
    seed: int = 0,
    mask: PaddingMask | None = None,
    parameterization: Parameterization | None = None,
) -> Float64[Tensor, "B"]:
    """Compute the difference of two networks' bounds at the same noise, in place of log p / p_ref.

    It is biased by the difference of the two gaps between bound and likelihood. Its variance is
    small, since both networks see the same states and times.

    Args:
        process: the forward process.
        denoiser: the network that is trained.
        reference: the network in the denominator; evaluated without a gradient.
        x: (B, L) answers.
        draws: number of draws of time and noise per answer.
        seed: of the noise; a row has its noise at any batch size.
        mask: (B, L) bool, False at padding.
        parameterization: meaning of the logits of both, as in ``nelbo``.

    Returns:
        (B,) nats per sequence; differentiable in ``denoiser``.

    Raises:
        TypeError, ValueError: draws below 1; others as in ``bound``.
    """
    check_count("draws", draws)
    difference = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    rows = torch.arange(len(x), device=x.device)

    def evaluate(network: Denoiser, draw: int) -> Float64[Tensor, "B"]:
        estimate = bound(
            process,
            network,
            x,
            mask=mask,
            parameterization=parameterization,
            generator=KeyedGenerator(seed, draw, rows),
        )
        return estimate.total.to(torch.float64).sum(-1)

    for draw in range(draws):
        with torch.no_grad():
            base = evaluate(reference, draw)
        difference = difference + base - evaluate(denoiser, draw)
    return difference / draws


def _check_rewards(log_probs: Tensor, recorded: Tensor, rewards: Tensor, group: int) -> None:
    """Raise TypeError or ValueError unless the arguments of ``reward_loss`` fit."""
    check_shape("log_probs", log_probs, (None, None, None), "(N, B, L)")
    check_shape("recorded", recorded, tuple(log_probs.shape), "that of log_probs")
    rows = log_probs.shape[1]
    if not isinstance(rewards, Tensor) or not rewards.is_floating_point():
        kind = rewards.dtype if isinstance(rewards, Tensor) else type(rewards).__name__
        raise TypeError(f"rewards has type {kind}, must be a floating-point tensor (B,)")
    check_shape("rewards", rewards, (rows,), f"(B,) = ({rows},)")
    finite = rewards.isfinite()
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise ValueError(f"rewards[{row}] is {float(rewards[row])}, must be finite")
    check_count("group", group, 2)
    require(rows % group == 0, f"group is {group}, must divide the {rows} rows")


def _baseline(
    returns: Float64[Tensor, "B"], group: int, normalize: bool
) -> tuple[Float64[Tensor, "B"], Float64[Tensor, "B"] | float]:
    """Return what is subtracted from the return of each row, and what divides the difference."""
    groups = returns.view(-1, group)
    if normalize:
        # a group of equal returns has differences of 0, whatever divides them
        deviation = groups.std(1, keepdim=True).clamp_min(1e-8)
        mean = groups.mean(1, keepdim=True)
        return mean.expand_as(groups).flatten(), deviation.expand_as(groups).flatten()
    others = (groups.sum(1, keepdim=True) - groups) / (group - 1)
    return others.flatten(), 1.0
