"""Losses of post-training: rewards of sampled paths, and preferences (theory section 22)."""

from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import softplus

from ddlib.objective.bound import bound
from ddlib.parameterization.capabilities import warn_of_alias
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess
from ddlib.samplers.trajectory import Trajectory, check_trajectory
from ddlib.typing import Denoiser, GivenTokens, PaddingMask, Tokens
from ddlib.utils.random import KeyedGenerator
from ddlib.utils.validation import (
    check_count,
    check_flag,
    check_number,
    check_shape,
    require,
    without_warning,
)

LARGEST_REWARD = 1e9
"""Largest absolute value of a reward: squares of gradients fit into float32."""


def reward_loss(
    log_probs: Float[Tensor, "N B L"],
    trajectory: Trajectory,
    rewards: Float[Tensor, "B"],
    *,
    group: int,
    clip: float | None = 0.2,
    beta: float = 0.0,
    kl: Float[Tensor, "N B"] | None = None,
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
        log_probs: (N, B, L) of ``dd.log_prob(..., trajectory, per_draw=True)``.
        trajectory: the path, or some of its steps (``choose``).
        rewards: (B,) rewards of the sequences.
        group: number of consecutive rows that answer one prompt, at least 2; divides B.
        clip: c, by which a ratio may leave 1 before its gradient ends (Schulman et al., 2017); None
            for no limit.
        beta: weight of the divergence from a reference.
        kl: (N, B) of ``dd.path_kl`` for the whole path; with ``beta`` alone.
        normalize: subtract the mean of the group, including the sample, and divide by the group's
            standard deviation (GRPO, Shao et al., 2024). This gradient is biased.

    Raises:
        TypeError, ValueError: log-probabilities of another path or without a gradient; rewards that
            are not a floating-point tensor, or not in [-1e9, 1e9]; a group below 2, that does not
            divide B, or with several prompts; ``beta`` without ``kl`` or the reverse, with chosen
            steps, or with an infinite divergence; numbers out of range.
    """
    _check_log_probs(log_probs, trajectory)
    rows = log_probs.shape[1]
    _check_rewards(rewards, rows, group)
    _check_prompts(trajectory, group)
    check_flag("normalize", normalize)
    check_number("beta", beta, 0, 1e6, "in [0, 1e6]")
    if clip is not None:
        check_number("clip", clip, 1e-9, 1 - 1e-9, "in (0, 1), or None")
    returns = rewards.to(torch.float64)
    later = torch.zeros(log_probs.shape[:2], dtype=torch.float64, device=log_probs.device)
    penalty = torch.zeros((), dtype=torch.float64, device=log_probs.device)
    require(
        (kl is not None) == (beta > 0),
        f"beta is {beta} and kl is {'None' if kl is None else 'passed'}, must be above 0 with the "
        "result of dd.path_kl, or 0 without it",
    )
    if kl is not None:
        _check_divergence(kl, log_probs, trajectory)
        total = beta * kl.detach().to(torch.float64)
        later = total.sum(0) - total.cumsum(0)
        returns = returns - total.sum(0)
        penalty = beta * kl.to(torch.float64).sum(0).mean()
    baseline, scale = _baseline(returns, group, normalize)
    advantage = (rewards - later - baseline) / scale
    ratio = (log_probs - trajectory.log_probs).to(torch.float64).exp()
    limited = ratio if clip is None else ratio.clamp(1 - clip, 1 + clip)
    advantage = advantage[..., None]
    # minus the advantage, so that positions that are not drawn, of ratio 1, have no term
    gain = torch.minimum(ratio * advantage, limited * advantage) - advantage
    return penalty - trajectory.weight * gain.sum((0, 2)).mean()


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
    _check_terms("chosen", chosen)
    _check_terms("rejected", rejected)
    check_shape("chosen", chosen, (None,), "(B,)")
    require(len(chosen) > 0, "chosen has no pair, must have at least 1")
    check_shape("rejected", rejected, tuple(chosen.shape), "that of chosen")
    check_number("beta", beta, 1e-9, 1e6, "in (0, 1e6]")
    return softplus(-beta * (chosen - rejected).to(torch.float64)).mean()


def bound_log_ratio(
    process: ForwardProcess,
    denoiser: Denoiser,
    reference: Denoiser,
    x: Tokens,
    *,
    seed: int,
    draws: int = 1,
    index: Int64[Tensor, "B"] | None = None,
    mask: PaddingMask | None = None,
    given: GivenTokens | None = None,
    parameterization: Parameterization | None = None,
    **options: Any,
) -> Float64[Tensor, "B"]:
    """Compute the difference of two networks' bounds at the same noise, in place of log p / p_ref.

    It is biased by the difference of the two gaps between bound and likelihood. Its variance is
    small, since both networks see the same states and times.

    Args:
        process: the forward process.
        denoiser: the network that is trained.
        reference: the network in the denominator; evaluated without a gradient.
        x: (B, L) answers, with their prompts where these are ``given``.
        seed: of the noise: another one in each training step.
        draws: number of draws of time and noise per answer.
        index: (B,) positions of the answers in the order of training, which key their noise as in
            ``KeyedGenerator``; by default 0 to B - 1. Answers with one position share times and
            noise, as the two of a pair should.
        mask: (B, L) bool, False at padding.
        given: (B, L) bool, True at the prompts, as in ``bound``.
        parameterization: meaning of the logits of both, as in ``nelbo``; by default what each
            states.
        **options: further arguments of ``bound``, such as ``density`` and ``pace``.

    Returns:
        (B,) nats per sequence; differentiable in ``denoiser``.

    Raises:
        TypeError, ValueError: draws below 1; others as in ``bound``.
    """
    check_count("draws", draws)
    warn_of_alias(denoiser, reference)
    difference = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    rows = torch.arange(len(x), device=x.device) if index is None else index

    def evaluate(network: Denoiser, draw: int) -> Float64[Tensor, "B"]:
        estimate = bound(
            process,
            network,
            x,
            mask=mask,
            given=given,
            parameterization=parameterization,
            generator=KeyedGenerator(seed, draw, rows),
            **options,
        )
        return estimate.total.to(torch.float64).sum(-1)

    for draw in range(draws):
        with torch.no_grad():
            base = evaluate(reference, draw)
        with without_warning("graph"):  # needed for the gradient, also of a network in eval mode
            difference = difference + base - evaluate(denoiser, draw)
    return difference / draws


def _check_log_probs(log_probs: Tensor, trajectory: Trajectory) -> None:
    """Raise TypeError or ValueError unless the terms are those of the path."""
    check_trajectory(trajectory)
    _check_terms("log_probs", log_probs)
    shape = tuple(trajectory.log_probs.shape)
    check_shape("log_probs", log_probs, shape, f"(N, B, L) of the trajectory, {shape}")
    require(
        not bool(log_probs[~trajectory.drawn].any()),
        "log_probs has terms where the trajectory drew nothing: must be dd.log_prob of the same "
        "trajectory, with per_draw=True",
    )
    require(
        log_probs.requires_grad or not torch.is_grad_enabled(),
        "log_probs does not require grad, must be dd.log_prob of the network that is trained, and "
        "not trajectory.log_probs; a temperature of 0 has no gradient",
    )


def _check_divergence(kl: Tensor, log_probs: Tensor, trajectory: Trajectory) -> None:
    """Raise TypeError or ValueError unless the divergence is that of the whole path."""
    _check_terms("kl", kl)
    shape = tuple(log_probs.shape[:2])
    check_shape("kl", kl, shape, f"(N, B) = {shape}")
    require(
        trajectory.weight == 1,
        f"trajectory.weight is {trajectory.weight:g}, must be 1: beta needs whole paths",
    )
    require(
        bool(kl.isfinite().all()),
        "kl is infinite: the reference has probability 0 where the network has not, as after "
        "top_p or top_k. Must be of a call without truncation",
    )
    require(
        kl.requires_grad or not torch.is_grad_enabled(),
        "kl does not require grad, must be dd.path_kl of the network that is trained",
    )


def _check_terms(name: str, terms: Tensor) -> None:
    """Raise TypeError or ValueError unless an argument is a floating-point tensor without NaN."""
    _check_floats(name, terms)
    require(not bool(terms.isnan().any()), f"{name} holds NaN, must be numbers")


def _check_floats(name: str, terms: Tensor) -> None:
    """Raise TypeError unless an argument is a floating-point tensor."""
    if not isinstance(terms, Tensor) or not terms.is_floating_point():
        kind = terms.dtype if isinstance(terms, Tensor) else type(terms).__name__
        raise TypeError(f"{name} has type {kind}, must be a floating-point tensor")


def _check_rewards(rewards: Tensor, rows: int, group: int) -> None:
    """Raise TypeError or ValueError unless rewards and groups fit."""
    _check_floats("rewards", rewards)
    check_shape("rewards", rewards, (rows,), f"(B,) = ({rows},)")
    fits = rewards.abs() <= LARGEST_REWARD
    if not bool(fits.all()):
        row = int((~fits).nonzero()[0])
        raise ValueError(
            f"rewards[{row}] is {float(rewards[row])}, must be in "
            f"[-{LARGEST_REWARD:g}, {LARGEST_REWARD:g}]"
        )
    check_count("group", group, 2)
    require(rows % group == 0, f"group is {group}, must divide the {rows} rows")


def _check_prompts(trajectory: Trajectory, group: int) -> None:
    """Raise ValueError unless the rows of each group have one prompt."""
    call = trajectory.call
    prompts = torch.where(call.free, -1, call.fixed)
    groups = prompts.view(-1, group, prompts.shape[-1])
    same = (groups == groups[:, :1]).all(-1).all(-1)
    if not bool(same.all()):
        first = group * int((~same).nonzero()[0])
        raise ValueError(
            f"group is {group}, but rows {first} to {first + group - 1} have several prompts; must "
            "be one, as of prompts.repeat_interleave(group, 0)"
        )


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
