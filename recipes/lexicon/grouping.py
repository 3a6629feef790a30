"""The clusters that a recipe's process needs: read from where they were saved, or made from the text."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddlib.hierarchies import load_clusters, save_clusters, semantic_clusters
from ddlib.hierarchies.clusters import Clusters
from recipes.data import Prepared
from recipes.lexicon.embeddings import word_embeddings

TEXT = 20_000_000
"""Tokens whose neighbourhoods are counted."""


def clusters_for(wanted: int | list[int] | str, data: Prepared) -> Clusters:
    """Clusters of the vocabulary of ``data``.

    Numbers are made of the text's own co-occurrences, once, and kept beside the data; a path (without suffix) is what
    ``python -m recipes.clusters`` or ``save_clusters`` wrote.

    Raises:
        FileNotFoundError: nothing is saved there.
        ValueError: clusters of another tokenizer.
    """
    path = _path(wanted, data)
    if not clusters_there(wanted, data):
        vectors = neighbourhoods(stream(data), data.vocab_size)
        found = semantic_clusters(vectors, wanted, nested="up", fingerprint=data.fingerprint)
        save_clusters(path, found)
    return load_clusters(path, data.fingerprint)


def clusters_there(wanted: int | list[int] | str, data: Prepared) -> bool:
    """Whether ``clusters_for`` only has to read; a path that leads nowhere is for it to refuse."""
    return isinstance(wanted, str) or Path(f"{_path(wanted, data)}.json").exists()


def _path(wanted: int | list[int] | str, data: Prepared) -> Path:
    if isinstance(wanted, str):
        return Path(wanted)
    counts = [wanted] if isinstance(wanted, int) else wanted
    return data.folder / "clusters-{}".format("-".join(map(str, counts)))


def neighbourhoods(text: Int[Tensor, " N"], vocab_size: int, dim: int = 64) -> Float[Tensor, "V dim"]:
    """Unit vectors of the words by what stands next to them; words that do not occur are drawn at random."""
    vectors = word_embeddings(text, vocab_size, min(dim, vocab_size - 1), reach=1)
    absent = vectors.square().sum(1) == 0
    vectors[absent] = torch.nn.functional.normalize(
        torch.randn(int(absent.sum()), vectors.shape[1], generator=torch.Generator().manual_seed(0))
    )
    return vectors


def stream(data: Prepared) -> Int[Tensor, " N"]:
    """The training text, or every so many-th document of it: about ``TEXT`` tokens."""
    step = -(-int(data.train.lengths.sum()) // TEXT)
    chosen = [data.train[index] for index in range(0, len(data.train), step)]
    return torch.from_numpy(np.concatenate(chosen).astype(np.int64))
