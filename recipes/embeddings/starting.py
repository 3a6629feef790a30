"""Initialisation of a network from statistics of the text: for runs too short to learn them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddlib.processes import ForwardProcess


def log_probs(counts: Int[Tensor, " V"]) -> Float[Tensor, " V"]:
    """Return the log frequencies of the tokens, each count increased by one half."""
    often = counts.float() + 0.5
    return (often / often.sum()).log()


_LATER = [(2 * i + 1) / 2**k for k in range(2, 7) for i in range(2 ** (k - 1))]
"""Times other than 1/2 at which a state may occur."""


def state_vectors(
    process: ForwardProcess, counts: Int[Tensor, " V"], vectors: Float[Tensor, "V dim"]
) -> Float[Tensor, "S dim"]:
    """Return a vector for each state: that of a token, or the mean of the tokens that can reach the
    state.

    Each counts by its frequency times its likelihood of reaching the state at t = 1/2. For clusters
    with xi = 1 and for masks that is the mean of the members at any time. A state that does not
    occur at t = 1/2, as under schedules that act in windows, takes the first of t = 1/4, 3/4, 1/8,
    3/8, ... at which it does.

    Args:
        process: determines the states.
        counts: number of occurrences of each token.
        vectors: vectors of the tokens.
    """
    beyond = torch.arange(process.vocab_size, process.num_states, device=process.device)
    if not len(beyond):
        return vectors
    likelihood = process.token_likelihood(beyond[None], torch.tensor([0.5], device=process.device))[
        0
    ].cpu()
    for t in _LATER:
        if bool((reached := likelihood.sum(-1, keepdim=True) > 0).all()):
            break
        other = process.token_likelihood(beyond[None], torch.tensor([t], device=process.device))[
            0
        ].cpu()
        likelihood = torch.where(reached, likelihood, other)
    weight = likelihood * (
        counts.double() + 1e-9
    )  # so that a cluster of tokens that never occur has a mean too
    means = weight @ vectors.double() / weight.sum(-1, keepdim=True)
    return torch.cat([vectors, means.to(vectors.dtype)])
