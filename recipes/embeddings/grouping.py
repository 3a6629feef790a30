"""Clusters for a recipe's process: read from a file, or computed from the text."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddlib.hierarchies import (
    Clusters,
    Tree,
    csv_parents,
    load_clusters,
    save_clusters,
    semantic_clusters,
)
from recipes.data import Prepared
from recipes.data.packaged import content_hash
from recipes.embeddings.neighbours import unit_vectors


def clusters_for(wanted: int | list[int] | str, data: Prepared) -> Clusters:
    """Return clusters of the vocabulary of ``data``.

    Numbers request clusters from the text's co-occurrences, computed once and stored beside the
    data. A path is that of a CSV file, ``x.csv``, in the format of ``csv_parents``, or (without
    suffix) a result of ``python -m recipes.clusters`` or ``save_clusters``.

    Raises:
        FileNotFoundError: nothing is stored there.
        ValueError: clusters of another tokenizer; errors of ``csv_parents``, such as a token
            without a row.
    """
    path = _path(wanted, data)
    if not clusters_there(wanted, data):
        if _is_list(wanted):
            parents, names = csv_parents(str(wanted), data.tokenizer.get_vocab())
            completed = complete_clusters(unit_vectors(data), parents, data.fingerprint, names)
        else:
            completed = semantic_clusters(
                unit_vectors(data), wanted, nested="up", fingerprint=data.fingerprint
            )
        save_clusters(path, completed)
    elif isinstance(wanted, str) and not Path(f"{path}.json").exists():
        raise FileNotFoundError(
            f"clusters is {wanted!r}, must be the path of {wanted}.json and {wanted}.safetensors, "
            "without suffix, or "
            "of a CSV file with rows token,parent whose name ends in .csv; or a number of clusters "
            "such as 64, or "
            "several, finest first, such as [256, 16]"
        )
    return load_clusters(path, data.fingerprint)


def clusters_there(wanted: int | list[int] | str, data: Prepared) -> bool:
    """Return whether ``clusters_for`` only has to read; it reports a missing path itself."""
    computed = not isinstance(wanted, str) or _is_list(wanted)
    return not computed or Path(f"{_path(wanted, data)}.json").exists()


def complete_clusters(
    vectors: Float[Tensor, "V dim"],
    parents: Sequence[Int[Tensor, " n"]],
    fingerprint: str,
    names: list[list[str]] | dict[str, list[str]] | None = None,
) -> Clusters:
    """Complete given clusters with their centroids among unit vectors of the tokens, by angle.

    Args:
        vectors: (V, dim) unit vectors.
        parents: in the format of ``Tree``.
        fingerprint: fingerprint of the vocabulary.
        names: names of the clusters and of their levels, as ``Tree`` takes them.
    """
    centroids = []
    coherence = []
    objective = []
    words = torch.arange(len(vectors))
    for level in parents:
        words = level[words]
        sums = vectors.new_zeros(int(words.max()) + 1, vectors.shape[1]).index_add(
            0, words, vectors
        )
        # the mean cosine of unit vectors to their mean is the length of that
        coherence.append(sums.norm(dim=1) / words.bincount())
        centroids.append(torch.nn.functional.normalize(sums, dim=1))
        objective.append(float((1 - (vectors * centroids[-1][words]).sum(1)).sum()))
    return Clusters(
        tuple(parents),
        tuple(centroids),
        tuple(coherence),
        tuple(objective),
        (0,) * len(parents),
        "cosine",
        Clusters.source_of(vectors),
        fingerprint,
        Tree(parents, names=names).names,
    )


def _is_list(wanted: int | list[int] | str) -> bool:
    """Return whether clusters are the path of a CSV file."""
    return isinstance(wanted, str) and wanted.lower().endswith(".csv")


def _path(wanted: int | list[int] | str, data: Prepared) -> Path:
    if _is_list(wanted):  # stored beside the data as other clusters are, until the file changes
        if not (file := Path(str(wanted))).is_file():
            raise FileNotFoundError(
                f"clusters={wanted!r}: there is no such file; python -m recipes.clusters writes "
                "one, or give a number"
            )
        return data.folder / f"clusters-named-{content_hash(file)[:12]}"
    if isinstance(wanted, str):
        return Path(wanted)
    counts = [wanted] if isinstance(wanted, int) else wanted
    return data.folder / "clusters-{}".format("-".join(map(str, counts)))
