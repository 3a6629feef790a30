"""Distribution of what a step draws from the network: log-probabilities and divergences."""

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.base import SamplingContext
from ddlib.samplers.state_draws import child_log_probs, transition_log_prob
from ddlib.typing import Logits, Times, Tokens


def step_log_probs(
    run: SamplingContext,
    z: Tokens,
    t: Times,
    s: Times,
    after: Tokens,
    drawn: Bool[Tensor, "B L"],
    force: bool,
) -> Float64[Tensor, "B L"]:
    """Compute the log-probability in nats of what a step draws from the network's distribution.

    In a ``LevelProcess`` that is the new state given its level; elsewhere z_s given z_t (theory
    section 22). Differentiable in the weights of the network.

    Args:
        run: the call of ``sample``.
        z: (B, L) states before the step.
        t: (B,) times of the network's input, or (B, L).
        s: times at the end of the step.
        after: (B, L) states after the step.
        drawn: (B, L) bool, True at the positions that are drawn.
        force: see ``ForwardProcess.sample_given_level``.

    Returns:
        (B, L) float64, 0 at positions that are not drawn.
    """
    result = torch.zeros(z.shape, dtype=torch.float64, device=z.device)
    if isinstance(run.process, LevelProcess):
        for part in run.network.at(z, t, drawn):
            states = after[part.b, part.i]
            terms = transition_log_prob(part, states, force, run.sharpen)
            result = result.index_put((part.b, part.i), terms)
        return result
    return posterior_log_probs(run.process, _cavity(run, z, t), z, t, s, after, drawn)


def _cavity(run: SamplingContext, z: Tokens, t: Times) -> Logits:
    """Return the cavity logits that the states are drawn with."""
    return run.process.sharpen(run.predict(z, t), z, t, run.sharpen)


def posterior_log_probs(
    process: ForwardProcess,
    logits: Logits,
    z: Tokens,
    t: Times,
    s: Times,
    after: Tokens,
    drawn: Bool[Tensor, "B L"],
) -> Float64[Tensor, "B L"]:
    """Compute log q(z_s | z_t, p) of states z_s, in nats, 0 at positions that are not drawn.

    Args:
        process: the forward process.
        logits: (B, L, V) cavity logits, after temperature and truncation.
        z: (B, L) states at ``t``.
        t: (B,) times, or (B, L).
        s: earlier times.
        after: (B, L) states at ``s``.
        drawn: (B, L) bool.
    """
    probs = process.posterior(logits.softmax(-1), z, t, s)
    chosen = probs.gather(-1, after[..., None])[..., 0].to(torch.float64)
    return torch.where(drawn, _log(chosen), 0.0)


def _log(probs: Tensor) -> Tensor:
    """Return logarithms, -inf with a gradient of 0 at impossible states, where it would be NaN."""
    possible = probs > 0
    return torch.where(possible, probs, 1.0).log().masked_fill(~possible, -torch.inf)


def step_divergence(
    run: SamplingContext,
    other: SamplingContext,
    z: Tokens,
    t: Times,
    s: Times,
    after: Tokens,
    drawn: Bool[Tensor, "B L"],
    force: bool,
) -> Float64[Tensor, "B L"]:
    """Compute KL(run || other) of the distributions that a step draws from, in nats.

    Args:
        run: a call of ``sample``.
        other: the same call with another network, whose gradient is not needed.
        z: (B, L) states before the step.
        t: (B,) times of the network's input, or (B, L).
        s: times at the end of the step.
        after: (B, L) states after the step, whose levels are those of the draws.
        drawn: (B, L) bool, True at the positions that are drawn.
        force: see ``ForwardProcess.sample_given_level``.

    Returns:
        (B, L) float64, 0 at positions that are not drawn.
    """
    result = torch.zeros(z.shape, dtype=torch.float64, device=z.device)
    if not isinstance(run.process, LevelProcess):
        probs = run.process.posterior(_cavity(run, z, t).softmax(-1), z, t, s)
        base_probs = other.process.posterior(_cavity(other, z, t).softmax(-1), z, t, s)
        terms = _divergence(_log(probs).to(torch.float64), base_probs.log().to(torch.float64))
        return torch.where(drawn, terms, result)
    for part, base in zip(run.network.at(z, t, drawn), other.network.at(z, t, drawn), strict=True):
        target = run.process.level_of(after[part.b, part.i][:, None])[:, 0]
        for (rows, _, members, log_probs), (_, _, others, log_base) in zip(
            child_log_probs(part, target, force, run.sharpen),
            child_log_probs(base, target, force, run.sharpen),
            strict=True,
        ):
            log_base = _at_members(members, others, log_base)
            terms = _divergence(log_probs.to(torch.float64), log_base.to(torch.float64))
            result = result.index_put((part.b[rows], part.i[rows]), terms)
    return result


def _at_members(
    members: Int64[Tensor, "n K"], others: Int64[Tensor, "n M"], log_probs: Float[Tensor, "n M"]
) -> Float[Tensor, "n K"]:
    """Return the log-probabilities of ``others`` in the order of ``members``, -inf at states that
    they lack.

    Networks with other heads list the states of a level in other orders.
    """
    if torch.equal(members, others):
        return log_probs
    size = 1 + int(torch.maximum(members.max(), others.max()))
    every = log_probs.new_full((len(members), size), -torch.inf)
    # padding of families of unlike sizes repeats states, with -inf
    return every.scatter_reduce(1, others, log_probs, "amax").gather(1, members)


def _divergence(
    log_probs: Float64[Tensor, "*n K"], log_base: Float64[Tensor, "*n K"]
) -> Float64[Tensor, "*n"]:
    """Compute KL(p || base) of log-probabilities; impossible states have no term."""
    possible = log_probs > -torch.inf
    # finite where p is 0: the gradient of 0 * inf would be NaN
    ratio = torch.where(possible, log_probs - log_base.detach(), 0.0)
    return (log_probs.exp() * ratio).sum(-1)
