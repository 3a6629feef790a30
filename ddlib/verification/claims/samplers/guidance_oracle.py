"""Dense distributions of guidance and their references, for sequences of two states."""

import torch
from torch import Tensor

from ddlib.guidance import Guidance
from ddlib.parameterization.logits import Parameterization, cavity_logits
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.typing import Denoiser
from ddlib.verification.framework.inputs import at, marginals
from ddlib.verification.framework.reference import sequences

LATE, EARLY = 0.5, 0.25
"""Times of a step, exact in float32, the dtype of network inputs."""
SMALL = 16
"""Largest number of states for which all sequences of two states are listed."""


def kind(guided: Guidance) -> str:
    """Return the kind of distribution to compare.

    That of a token, of the next jump, or of the state after a step.
    """
    if guided.has_step_distribution:
        return "step"
    return "token" if guided.on == "tokens" else "jump"


def pairs_of_states(process: ForwardProcess) -> Tensor:
    """Return all sequences of two states, (N, 2), or a sample of them."""
    if process.num_states <= SMALL:
        pairs = sequences(process.num_states, 2)
    else:
        tokens = torch.randint(
            process.vocab_size, (64, 2), generator=torch.Generator().manual_seed(0)
        )
        pairs = process.sample(tokens, at(LATE, 64), torch.Generator().manual_seed(1))
    return pairs[(process.token_likelihood(pairs, at(LATE, len(pairs))) > 0).any(-1).all(-1)]


def by_level(process: ForwardProcess, distribution: Tensor, target: str) -> Tensor:
    """Normalise distributions, (N, L, K): within each level if the levels at s do not depend on the
    network.
    """
    if target != "step" or not isinstance(process, LevelProcess):
        return distribution / distribution.sum(-1, keepdim=True).clamp_min(1e-300)
    level = process.level_of(torch.arange(process.num_states)[None])[0]
    total = torch.zeros_like(distribution)
    for i in range(len(process.levels)):
        total = torch.where(level == i, distribution[..., level == i].sum(-1, keepdim=True), total)
    return distribution / total.clamp_min(1e-300)


def target_probs(
    process: ForwardProcess, denoiser: Denoiser, meaning: Parameterization, z: Tensor, target: str
) -> Tensor:
    """Compute the distribution of this kind from a denoiser, (N, L, K)."""
    t = at(LATE, len(z))
    s = at(EARLY, len(z))
    cavity = cavity_logits(process, denoiser(z, t), z, t, meaning).to(torch.float64).log_softmax(-1)
    if target == "token":
        return (cavity + process.token_likelihood(z, t).log()).softmax(-1)
    probs = cavity.exp()
    steered = (
        process.reverse_rate(probs, z, t) if target == "jump" else process.posterior(probs, z, t, s)
    )
    return by_level(process, steered, target)


def steer(guided: Guidance, z: Tensor) -> Tensor:
    """Compute the distribution from a guidance, (N, L, K)."""
    process = guided.process
    if not guided.has_step_distribution:
        return target_probs(process, guided, guided.parameterization, z, kind(guided))
    log_probs = guided.step_distribution(z, at(LATE, len(z)), at(EARLY, len(z)))
    highest = log_probs.amax(-1, keepdim=True)
    return by_level(process, (log_probs - highest).exp(), "step")


def temper(
    process: ForwardProcess, conditional: Tensor, unconditional: Tensor, gamma: float, target: str
) -> Tensor:
    """Compute the normalised product of ``conditional`` to the gamma and ``unconditional`` to the 1
    - gamma.
    """
    probs = conditional**gamma * torch.where(unconditional > 0, unconditional, 1.0) ** (1 - gamma)
    return by_level(
        process, torch.where((conditional > 0) & (unconditional > 0), probs, 0.0), target
    )


def dense_probs(process: ForwardProcess, joint: Tensor, target: str) -> Tensor:
    """Compute the distribution of this kind from the ``joint`` distribution of two tokens, (S * S,
    2, K).

    The first axis lists all sequences of two states. Only marginals, rates and transitions are
    used, not ``reverse_rate`` and ``posterior``.
    """
    noised = marginals(process, LATE)
    size = process.num_states
    probs = []
    for tokens in (joint, joint.T):  # the first position, then the second one
        # joint probability of the token and the other position's state, (V, S)
        beside = tokens @ noised
        if target == "token":
            result = torch.einsum("xz,xo->zox", noised, beside)
        elif target == "jump":
            rates = process.rate_matrix(LATE).fill_diagonal_(0)
            result = torch.einsum("yz,xy,xo->zoy", rates, noised, beside)
        else:
            early = marginals(process, EARLY)
            result = torch.einsum("yz,xy,xo->zoy", process.transition(EARLY, LATE), early, beside)
        probs.append(result)
    first, second = probs
    result = torch.stack([first, second.transpose(0, 1)], 2).reshape(size * size, 2, -1)
    return by_level(process, result, target)
