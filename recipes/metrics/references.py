"""Models without a network that a bound is compared with: all tokens alike, and the frequencies of
the tokens, in each field.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recipes.data import Batch
from recipes.embeddings.starting import log_probs
from recipes.metrics.bound import Terms, sum_fields

if TYPE_CHECKING:  # help of a recipe imports this module, and reading data takes seconds to import
    from recipes.data import Prepared


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


@dataclass(frozen=True)
class Alphabets:
    """Alphabets of the positions of sequences."""

    sizes: list[int]
    """Number of tokens of each."""
    names: list[str]
    """Name of each; none where there is one."""
    of_position: Int[Tensor, " *L"]
    """Number of that of each position, (L,); of all positions, (), where there is one."""

    @classmethod
    def of(cls, data: "Prepared") -> "Alphabets":
        """Return those of prepared data."""
        fields = () if data.layout is None else data.layout.fields
        if not fields:
            return cls([data.vocab_size], [], torch.tensor(0))
        numbers = {one.name: number for number, one in enumerate(fields)}
        places = torch.tensor([numbers[name] for name in data.layout.positions])
        return cls([len(one.symbols) for one in fields], list(numbers), places)

    def uniform(self, terms: Terms) -> float:
        """Return the mean of -log of equal probabilities over the tokens of ``unigram``."""
        counts = terms.field_tokens.sum(0).double()
        return float(counts @ torch.tensor(self.sizes, dtype=torch.float64).log() / counts.sum())

    def costs(self, data: "Prepared") -> Float[Tensor, "F V"]:
        """Return -log of the frequencies of the training tokens in each field, each count increased
        by one half; given tokens are not counted.
        """
        from recipes.embeddings.neighbours import predicted, stream  # on demand, as above

        ids = stream(data)
        field = self.of_position.expand(ids.view(-1, *self.of_position.shape).shape).flatten()
        counted = predicted(data)
        ids = ids[counted]
        field = field[counted]
        costs = torch.full((len(self.sizes), max(self.sizes)), torch.inf, dtype=torch.float64)
        for number, size in enumerate(self.sizes):
            counts = ids[field == number].bincount(minlength=size)
            costs[number, :size] = -log_probs(counts).double()
        return costs


def unigram(
    costs: Float[Tensor, "F V"],
    field: Int[Tensor, " *L"],
    batches: Iterable[Batch],
    given: bool = False,
) -> Terms:
    """Return -log p(x) of every sequence under the frequencies of the tokens.

    Args:
        costs: nats of each token in each field, ``Alphabets.costs``.
        field: number of the field of each position, or of all.
        batches: batches of unpacked sequences; padding is not counted.
        given: whether the first token of a sequence is given, and not measured.
    """
    parts = []
    for batch in batches:
        x = batch.x.cpu()
        mask = (batch.mask & batch.free).cpu()
        mask[:, : int(given)] = False
        nats = torch.where(mask, costs[field, x], 0.0)
        columns = sum_fields(nats, mask, field.expand(x.shape), len(costs))
        parts.append(Terms(batch.index.cpu(), nats.sum(1)[:, None], mask.sum(1), **columns))
    return Terms.join(parts)
