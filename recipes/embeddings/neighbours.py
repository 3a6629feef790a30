"""Co-occurrence of symbols that are not text: within a sequence, along each axis of its shape."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array
from torch import Tensor

from recipes.data import Prepared
from recipes.embeddings.embeddings import Pairs, counts_of_pairs, ppmi_vectors, word_embeddings

TEXT = 20_000_000
"""Number of tokens whose neighbourhoods are counted."""


def sample_sequences(data: Prepared) -> list[Int[np.ndarray, " n"]]:
    """Return the training sequences, or a regular sample of them: about ``TEXT`` tokens."""
    return [data.train[index] for index in _sampled(data)]


def _sampled(data: Prepared) -> range:
    step = -(-int(data.train.lengths.sum()) // TEXT)
    return range(0, len(data.train), step)


def stream(data: Prepared) -> Int[Tensor, " N"]:
    """Return the tokens of ``sample_sequences``, one sequence after the other."""
    return torch.from_numpy(np.concatenate(sample_sequences(data)).astype(np.int64))


def predicted(data: Prepared) -> Bool[Tensor, " N"]:
    """Return True at the tokens of ``stream`` that are not given."""
    marks = [data.train.given(index) for index in _sampled(data)]
    return ~torch.from_numpy(np.concatenate(marks))


def vectors_of(
    data: Prepared, dim: int, reach: int = 4, smoothing: float = 0.75, seed: int = 0
) -> Float[Tensor, "V dim"]:
    """Return unit vectors of the tokens by their neighbours; arguments as ``word_embeddings``.

    Text is one stream. Symbols of different sequences are not neighbours; in a shape (H, W)
    neighbours are those above, below, left and right.

    Raises:
        ValueError: no sequence has two symbols; a ``dim`` that is not below the vocabulary.
    """
    if data.is_text:
        return word_embeddings(stream(data), data.vocab_size, dim, reach, smoothing, seed)
    return ppmi_vectors(symbol_cooccurrences(data, reach), dim, smoothing, seed)


def symbol_cooccurrences(data: Prepared, reach: int) -> csr_array:
    """Count how often two symbols stand at most ``reach`` apart in a sequence, as
    ``cooccurrences``: (V, V).

    Raises:
        ValueError: no sequence has two symbols.
    """
    documents = sample_sequences(data)
    size = int(np.prod(data.shape))
    shaped = bool(data.shape) and all(len(document) == size for document in documents)
    if shaped:
        pairs = _along_axes(np.stack(documents).reshape(-1, *data.shape), reach)
    else:
        pairs = _in_rows(
            np.concatenate(documents), np.array([len(document) for document in documents]), reach
        )
    counts = counts_of_pairs(pairs, data.vocab_size, reach)
    if not counts.nnz:
        raise ValueError(f"data={data.folder}: no sequence has two symbols, so none has neighbours")
    return counts


def _along_axes(values: Int[np.ndarray, "N ..."], reach: int) -> Iterator[Pairs]:
    for axis in range(1, values.ndim):
        moved = np.moveaxis(values, axis, -1)
        for distance in range(1, min(reach, moved.shape[-1] - 1) + 1):
            yield distance, moved[..., :-distance].ravel(), moved[..., distance:].ravel()


def _in_rows(
    values: Int[np.ndarray, " T"], lengths: Int[np.ndarray, " N"], reach: int
) -> Iterator[Pairs]:
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for distance in range(1, min(reach, len(values) - 1) + 1):
        same = owner[:-distance] == owner[distance:]
        yield distance, values[:-distance][same], values[distance:][same]


def unit_vectors(data: Prepared, dim: int = 64) -> Float[Tensor, "V dim"]:
    """Return unit vectors of the tokens by their next neighbours.

    Tokens that do not occur are drawn at random.
    """
    return complete(vectors_of(data, min(dim, data.vocab_size - 1), reach=1))


def neighbourhoods(
    text: Int[Tensor, " N"], vocab_size: int, dim: int = 64
) -> Float[Tensor, "V dim"]:
    """Return ``unit_vectors`` of one stream of tokens."""
    return complete(word_embeddings(text, vocab_size, min(dim, vocab_size - 1), reach=1))


def complete(vectors: Float[Tensor, "V dim"]) -> Float[Tensor, "V dim"]:
    """Replace the rows of tokens that do not occur by random unit vectors."""
    absent = vectors.square().sum(1) == 0
    vectors[absent] = torch.nn.functional.normalize(
        torch.randn(int(absent.sum()), vectors.shape[1], generator=torch.Generator().manual_seed(0))
    )
    return vectors
