"""Parent vectors for ``Tree`` without embeddings, and memberships for ``Soft`` from clusters."""

import csv
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from ddlib.hierarchies.clusters import Clusters
from ddlib.utils.validation import check_count, check_number, check_shape, require


def random_parents(
    vocab_size: int, num_clusters: int | Sequence[int], seed: int = 0
) -> list[Tensor]:
    """Draw random parents, in clusters whose sizes differ by at most 1: a baseline for semantic
    clusters.

    Args:
        vocab_size: number of tokens V.
        num_clusters: number of clusters of each level, finest first; strictly decreasing and less
            than V.
        seed: seed of the draw.

    Raises:
        ValueError: counts that are below 1 or do not decrease.

    Example:
        >>> [torch.bincount(parents).tolist() for parents in random_parents(7, [3, 2])]
        [[3, 2, 2], [2, 1]]
    """
    sizes = [num_clusters] if isinstance(num_clusters, int) else list(num_clusters)
    counts = [
        check_count("vocab_size", vocab_size),
        *(check_count("num_clusters", count) for count in sizes),
    ]
    for fine, coarse in pairwise(counts):
        require(
            coarse < fine,
            f"num_clusters is {num_clusters} for {vocab_size} tokens: every level must be coarser",
        )
    generator = torch.Generator().manual_seed(check_count("seed", seed, 0))
    return [torch.randperm(fine, generator=generator) % coarse for fine, coarse in pairwise(counts)]


def table_parents(
    table: Mapping[str, Sequence[str]], vocabulary: Mapping[str, int], other: str | None = None
) -> tuple[list[Tensor], list[list[str]]]:
    """Build parents from a table that maps each token to its ancestors, nearest first, as
    ``wordnet_table`` returns it.

    Args:
        table: names of the ancestors of each token, the same number for all; each name has one
            parent.
        vocabulary: token -> id, ids 0..V-1.
        other: name of the cluster, at every level, of tokens that the table lacks; None if there
            are none.

    Returns:
        The parents for ``Tree``, and the names of each level's clusters, in alphabetical order.

    Raises:
        ValueError: tokens missing from the vocabulary, or from the table without ``other``;
            different numbers of ancestors; a name with two parents; ids with gaps.

    Example:
        >>> tokens = {"cat": 0, "dog": 1, "ivy": 2}
        >>> table = {"cat": ["animal"], "dog": ["animal"], "ivy": ["plant"]}
        >>> parents, names = table_parents(table, tokens)
        >>> parents, names
        ([tensor([0, 0, 1])], [['animal', 'plant']])
    """
    tokens = [token for token, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    require(
        sorted(vocabulary.values()) == list(range(len(tokens))),
        f"vocabulary must contain exactly the ids 0..{len(tokens) - 1}",
    )
    require(len(table) > 0, "table is empty, must hold the ancestors of each token")
    strange = [token for token in table if token not in vocabulary]
    require(
        not strange, f"table has {len(strange)} tokens that are not in vocabulary: {strange[:5]}"
    )
    missing = [token for token in tokens if token not in table]
    require(
        other is not None or not missing,
        f"table lacks {len(missing)} tokens of vocabulary: {missing[:5]}; pass other=NAME, a "
        "cluster for them",
    )
    depth = len(next(iter(table.values())))
    odd = next(
        (token for token, path in table.items() if isinstance(path, str) or len(path) != depth),
        None,
    )
    if depth == 0 or odd is not None:
        raise ValueError(
            f"table has {table.get(odd or tokens[0])!r} for {odd or tokens[0]!r}, must be "
            f"{depth or 1} names"
        )
    paths = [list(table.get(token, [other or ""] * depth)) for token in tokens]
    names = [sorted({path[level] for path in paths}) for level in range(depth)]
    parents = []
    members = [path[0] for path in paths]
    for level in range(depth):
        index = {name: i for i, name in enumerate(names[level])}
        parents.append(torch.tensor([index[name] for name in members]))
        if level + 1 < depth:
            above: dict[str, str] = {}
            for path in paths:
                name = path[level]
                parent = path[level + 1]
                first_parent = above.setdefault(name, parent)
                require(
                    first_parent == parent,
                    f"table has two parents of {name!r}: {first_parent!r} and {parent!r}",
                )
            members = [above[name] for name in names[level]]
    return parents, names


def csv_parents(
    path: str | Path, vocabulary: Mapping[str, int], other: str | None = None
) -> tuple[list[Tensor], list[list[str]] | dict[str, list[str]]]:
    """Build parents from a CSV file with a row ``token,parent`` per token.

    Further columns are further levels.

    Tokens are spelled as in ``vocabulary``. A first row ``token,...`` is a header, unless ``token``
    is a token of the vocabulary. It names the levels, such as ``token,charge,size``, unless one is
    called ``parent``.

    Args:
        path: path of the file, UTF-8.
        vocabulary: token -> id, ids 0..V-1.
        other: as in ``table_parents``.

    Returns:
        As ``table_parents``; the names by level if the header names the levels.

    Raises:
        ValueError: as ``table_parents``; a token that occurs twice.
    """
    table: dict[str, list[str]] = {}
    levels: list[str] = []
    with open(path, newline="", encoding="utf-8-sig") as file:  # with or without a byte order mark
        reader = csv.reader(file)
        for row in reader:
            if reader.line_num == 1 and row[:1] == ["token"] and "token" not in vocabulary:
                levels = [] if "parent" in row or len(set(row)) < len(row) else row[1:]
                continue
            if not row:
                continue
            require(
                row[0] not in table,
                f"{path}, line {reader.line_num}: token {row[0]!r} occurs twice",
            )
            table[row[0]] = row[1:]
    parents, names = table_parents(table, vocabulary, other)
    named = len(levels) == len(names)
    return parents, dict(zip(levels, names, strict=True)) if named else names


def soft_memberships(
    clusters: Clusters, embeddings: Float[Tensor, "V D"], temperature: float = 0.1, most: int = 4
) -> dict[str, Any]:
    r"""Memberships of each token in its nearest clusters, for ``Soft``: soft k-means at given
    centroids.

    A token belongs to cluster k in proportion to :math:`\exp(-d(e, c_k) / T)`, over its ``most``
    nearest clusters and its own; d is that of ``semantic_clusters``. At T near 0 every token is in
    its own or its nearest cluster alone.

    Args:
        clusters: result of ``semantic_clusters``; its finest level is used.
        embeddings: one row per token, those that were clustered.
        temperature: T > 0, in units of the distance: 1 - cosine, or the squared distance.
        most: largest number of clusters of a token, at least 1.

    Returns:
        The arguments of ``Sparse``: ``Soft(soft_memberships(...))``.

    Raises:
        TypeError, ValueError: embeddings of another shape than those that were clustered; a bad
            temperature or number.

    Example:
        >>> from ddlib.hierarchies import semantic_clusters
        >>> tokens = torch.tensor([[1.0, 0.0], [1.0, 0.9], [0.0, 1.0], [0.1, 3.0]])
        >>> found = soft_memberships(semantic_clusters(tokens, 2), tokens, temperature=0.2)
        >>> torch.tensor(found["probability"]).amax(1)
        tensor([0.9899, 0.7793, 0.9611, 0.9549])
    """
    check_number("temperature", temperature, 1e-9, math.inf, "above 0")
    centroids = clusters.centroids[0].to(torch.float64)
    cluster = clusters.of_tokens()
    rows = embeddings.detach().to(centroids.device, torch.float64)
    check_shape(
        "embeddings",
        rows,
        (len(cluster), centroids.shape[1]),
        f"(V, D) = ({len(cluster)}, {centroids.shape[1]})",
    )
    if clusters.metric == "cosine":
        distance = 1 - normalize(rows, dim=1) @ normalize(centroids, dim=1).mT
    else:
        distance = torch.cdist(rows, centroids) ** 2
    # its own cluster is kept, so that none is empty
    ranked = distance.scatter(1, cluster[:, None], -torch.inf)
    index = ranked.topk(min(check_count("most", most), len(centroids)), largest=False).indices
    probability = (-distance.gather(1, index) / temperature).softmax(1)
    return {
        "index": index.tolist(),
        "probability": probability.tolist(),
        "num_parents": len(centroids),
    }
