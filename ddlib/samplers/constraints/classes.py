"""Classes of tokens with the same transitions, and sums over them."""

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor


def log_sums(terms: Float64[Tensor, "B n"], places: Int64[Tensor, "B n"], size: int) -> Float64[Tensor, "B m"]:
    """Return the logs of the sums of exp(terms) with the same place, (B, size); -inf for a place without terms."""
    largest = terms.new_full((len(terms), size), -torch.inf).scatter_reduce_(1, places, terms, "amax")
    finite = torch.where(largest.isfinite(), largest, 0.0)
    sums = torch.zeros_like(largest).scatter_add_(1, places, (terms - finite.gather(1, places)).exp())
    return sums.log() + finite


def token_classes(
    sources: np.ndarray, tokens: np.ndarray, targets: np.ndarray, vocab_size: int
) -> tuple[Int64[Tensor, "V"], int, list[Tensor]]:
    """Return the class of each token, the number of classes with transitions, and the transitions of these classes.

    Tokens without transitions have the class behind the last. The partition is refined state by state: tokens stay
    together while they have the same next state.

    Args:
        sources: (n,) states of the transitions.
        tokens: (n,) their tokens.
        targets: (n,) their next states.
        vocab_size: number of tokens V.

    Returns:
        (V,) int64, the number of classes, and sources, classes and targets of the transitions.
    """
    classes, count = np.zeros(vocab_size, np.int64), 1
    order = np.argsort(sources, kind="stable")
    for some in np.split(order, np.flatnonzero(np.diff(sources[order])) + 1) if len(order) else []:
        pairs = classes[tokens[some]] * (int(targets.max()) + 1) + targets[some]
        distinct, which = np.unique(pairs, return_inverse=True)
        classes[tokens[some]], count = count + which, count + len(distinct)
    used = np.zeros(vocab_size, bool)
    used[tokens] = True
    distinct, members, which = np.unique(classes[used], return_index=True, return_inverse=True)
    numbers = np.full(vocab_size, len(distinct), np.int64)
    numbers[used] = which
    first = np.zeros(vocab_size, bool)
    first[np.flatnonzero(used)[members]] = True
    kept = first[tokens]  # the transitions of one member of each class
    found = [torch.from_numpy(part[kept]) for part in (sources, numbers[tokens], targets)]
    return torch.from_numpy(numbers), len(distinct), found
