"""Clusters for a recipe's process: read from a file, or computed from the text."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddlib.hierarchies import csv_parents, load_clusters, save_clusters, semantic_clusters
from ddlib.hierarchies.clusters import Clusters
from ddlib.hierarchies.clusters.semantic import embeddings_hash
from recipes.data import Prepared
from recipes.embeddings.embeddings import word_embeddings

TEXT = 20_000_000
"""Number of tokens whose neighbourhoods are counted."""


def clusters_for(wanted: int | list[int] | str, data: Prepared) -> Clusters:
    """Return clusters of the vocabulary of ``data``.

    Numbers request clusters from the text's co-occurrences, computed once and stored beside the data. A path is that of
    a CSV file, ``x.csv``, in the format of ``csv_parents``, or (without suffix) a result of
    ``python -m recipes.clusters`` or ``save_clusters``.

    Raises:
        FileNotFoundError: nothing is stored there.
        ValueError: clusters of another tokenizer; errors of ``csv_parents``, such as a token without a row.
    """
    path = _path(wanted, data)
    if not clusters_there(wanted, data):
        parents = _listed(wanted, data) if _is_list(wanted) else None  # raises before vectors are made
        vectors = neighbourhoods(stream(data), data.vocab_size)
        if parents is None:
            found = semantic_clusters(vectors, wanted, nested="up", fingerprint=data.fingerprint)
        else:
            found = given_clusters(vectors, parents, data.fingerprint)
        save_clusters(path, found)
    elif isinstance(wanted, str) and not Path(f"{path}.json").exists():
        raise FileNotFoundError(
            f"clusters is {wanted!r}, must be the path of {wanted}.json and {wanted}.safetensors, without suffix, or "
            "of a CSV file with rows token,parent whose name ends in .csv"
        )
    return load_clusters(path, data.fingerprint)


def clusters_there(wanted: int | list[int] | str, data: Prepared) -> bool:
    """Return whether ``clusters_for`` only has to read; it reports a missing path itself."""
    made = not isinstance(wanted, str) or _is_list(wanted)
    return not made or Path(f"{_path(wanted, data)}.json").exists()


def given_clusters(vectors: Float[Tensor, "V dim"], parents: Sequence[Int[Tensor, " n"]], fingerprint: str) -> Clusters:
    """Complete given clusters with their centroids among unit vectors of the tokens, by angle.

    Args:
        vectors: (V, dim) unit vectors.
        parents: in the format of ``Tree``.
        fingerprint: fingerprint of the vocabulary.
    """
    centroids, coherence, objective, words = [], [], [], torch.arange(len(vectors))
    for level in parents:
        words = level[words]
        sums = vectors.new_zeros(int(words.max()) + 1, vectors.shape[1]).index_add(0, words, vectors)
        # the mean cosine of unit vectors to their mean is the length of that
        coherence.append(sums.norm(dim=1) / words.bincount())
        centroids.append(torch.nn.functional.normalize(sums, dim=1))
        objective.append(float((1 - (vectors * centroids[-1][words]).sum(1)).sum()))
    return Clusters(
        tuple(parents), tuple(centroids), tuple(coherence), tuple(objective), (0,) * len(parents), "cosine",
        embeddings_hash(vectors), fingerprint,
    )  # fmt: skip


def _is_list(wanted: int | list[int] | str) -> bool:
    """Return whether clusters are the path of a CSV file."""
    return isinstance(wanted, str) and wanted.lower().endswith(".csv")


def _listed(wanted: int | list[int] | str, data: Prepared) -> list[Int[Tensor, " n"]]:
    """Read the parents in a CSV file."""
    return csv_parents(str(wanted), data.tokenizer.get_vocab())[0]


def _path(wanted: int | list[int] | str, data: Prepared) -> Path:
    if _is_list(wanted):  # stored beside the data as other clusters are, until the file changes
        return data.folder / f"clusters-csv-{hashlib.sha256(Path(str(wanted)).read_bytes()).hexdigest()[:12]}"
    if isinstance(wanted, str):
        return Path(wanted)
    counts = [wanted] if isinstance(wanted, int) else wanted
    return data.folder / "clusters-{}".format("-".join(map(str, counts)))


def neighbourhoods(text: Int[Tensor, " N"], vocab_size: int, dim: int = 64) -> Float[Tensor, "V dim"]:
    """Return unit vectors of the tokens by their neighbours; tokens that do not occur are drawn at random."""
    vectors = word_embeddings(text, vocab_size, min(dim, vocab_size - 1), reach=1)
    absent = vectors.square().sum(1) == 0
    vectors[absent] = torch.nn.functional.normalize(
        torch.randn(int(absent.sum()), vectors.shape[1], generator=torch.Generator().manual_seed(0))
    )
    return vectors


def stream(data: Prepared) -> Int[Tensor, " N"]:
    """Return the training text, or a regular sample of its documents: about ``TEXT`` tokens."""
    step = -(-int(data.train.lengths.sum()) // TEXT)
    chosen = [data.train[index] for index in range(0, len(data.train), step)]
    return torch.from_numpy(np.concatenate(chosen).astype(np.int64))
