"""Models without a network that a bound is compared with: all tokens alike, and the frequencies of
the tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from recipes.data import Batch
from recipes.embeddings.starting import log_probs
from recipes.metrics.bound import Terms


@dataclass(frozen=True)
class References:
    """Nats per token of two models on the tokens of a bound."""

    uniform: float
    """Cross-entropy of the model in which all tokens have equal probabilities: log V."""
    unigram: float
    """Cross-entropy of the model that draws every token by its frequency in training."""

    def beside(self, bound: float) -> str:
        """Return both as text, and whether a bound is above one of them."""
        line = f"uniform model {self.uniform:.4f}, unigram model {self.unigram:.4f}"
        if bound <= min(self.uniform, self.unigram):
            return line
        return (
            f"{line}: the bound is above the "
            f"{'uniform' if bound > self.uniform else 'unigram'} model"
        )


def unigram(counts: Int[Tensor, " V"], batches: Iterable[Batch], given: bool = False) -> Terms:
    """Return -log p(x) of every sequence under the frequencies of the tokens, each count increased
    by one half.

    Args:
        counts: number of occurrences of each token in training.
        batches: batches of unpacked sequences; padding is not counted.
        given: whether the first token of a sequence is given, and not measured.
    """
    costs = -log_probs(counts).double()
    parts = []
    for batch in batches:
        x = batch.x.cpu()
        mask = (batch.mask & batch.free).cpu()
        mask[:, : int(given)] = False
        nats = torch.where(mask, costs[x], 0.0).sum(1)
        parts.append(Terms(batch.index.cpu(), nats[:, None], mask.sum(1)))
    return Terms.join(parts)
