"""Where the statistics of a text lead a network before it is trained: for runs too short to find them out."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddlib.processes import ForwardProcess


def log_probs(counts: Int[Tensor, " V"]) -> Float[Tensor, " V"]:
    """Log of the frequencies of the words, each seen half a time more than it was."""
    often = counts.float() + 0.5
    return (often / often.sum()).log()


def state_vectors(
    process: ForwardProcess, counts: Int[Tensor, " V"], vectors: Float[Tensor, "V dim"]
) -> Float[Tensor, "S dim"]:
    """A vector for each state: a word's own, another state's the mean of the words that it may stand for.

    Each counts as often as it occurs and as likely as it leads there at t = 1/2. For clusters with xi = 1 and for masks
    that is the mean of the members at any time.

    Args:
        process: whose states.
        counts: how often each word occurs.
        vectors: of the words.
    """
    beyond = torch.arange(process.vocab_size, process.num_states, device=process.device)
    if not len(beyond):
        return vectors
    likelihood = process.token_likelihood(beyond[None], torch.tensor([0.5], device=process.device))[0].cpu()
    weight = likelihood * (counts.double() + 1e-9)  # so that a cluster of words that never occur has a mean too
    means = weight @ vectors.double() / weight.sum(-1, keepdim=True)
    return torch.cat([vectors, means.to(vectors.dtype)])
