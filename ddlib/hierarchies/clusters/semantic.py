"""Semantic clustering: hierarchies of any depth from token embeddings."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from ddlib.hierarchies.clusters.kmeans import Fit, Points, fit
from ddlib.hierarchies.level_names import NO_NAMES, Names
from ddlib.hierarchies.tree import Tree
from ddlib.utils.validation import check_count, check_number, require

Bounds = tuple[int, int]
FitFunction = Callable[[Points, Tensor, Tensor], Fit]


@dataclass(frozen=True, repr=False)
class Clusters:
    """Result of ``semantic_clusters``.

    It can stand for its parents, as in ``hdlm_levels(clusters)``.

    Tuples have one entry per level of clusters, finest first.

    Args:
        parents: cluster of every member of the level below, tokens first; every cluster has at
            least one.
        centroids: (clusters, D) in the space of the embeddings, unit vectors under cosine; can
            initialise cluster embeddings.
        coherence: (clusters,) mean cosine of the tokens of each cluster to the mean of these tokens
            (of unit vectors under cosine).
        objective: sum over tokens of the squared distance to their cluster's centroid, or of 1 -
            cosine.
        iterations: number of k-means iterations from the best start; the longest run of the level.
        metric: "cosine" or "euclidean".
        source: SHA-256 of the embeddings, as hex.
        fingerprint: fingerprint of the vocabulary (``ddlib.fingerprint``), or None.
        names: names of the clusters and of their levels; empty if they have none.
    """

    parents: tuple[Tensor, ...]
    centroids: tuple[Tensor, ...]
    coherence: tuple[Tensor, ...]
    objective: tuple[float, ...]
    iterations: tuple[int, ...]
    metric: str
    source: str
    fingerprint: str | None = None
    names: Names = NO_NAMES

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.parents)

    def __repr__(self) -> str:
        levels = ", ".join(str(len(level)) for level in self.centroids)
        return (
            f"Clusters({len(self.parents[0])} tokens in {levels} clusters, metric={self.metric!r})"
        )

    @staticmethod
    def source_of(embeddings: Tensor) -> str:
        """Return the SHA-256 of dtype, shape and values of a tensor, as hex."""
        data = embeddings.detach().cpu().contiguous()
        head = f"{data.dtype} {tuple(data.shape)} ".encode()
        return hashlib.sha256(head + data.view(torch.uint8).numpy().tobytes()).hexdigest()

    @property
    def sizes(self) -> tuple[Tensor, ...]:
        """Number of children of each cluster, per level."""
        return tuple(torch.bincount(vector) for vector in self.parents)

    def of_tokens(self, level: int = 0) -> Int64[Tensor, "children"]:
        """Return the cluster of every token, at a level of clusters counted from 0, the finest."""
        return _ancestors(self.parents)[level]

    def tree(self, xi: float | Sequence[float] = 1.0, speed: Sequence[float] | None = None) -> Tree:
        """Return the hierarchy, with the fingerprint of its vocabulary."""
        return Tree(self.parents, xi, speed, fingerprint=self.fingerprint, names=self.names.plain())


def semantic_clusters(
    embeddings: Float[Tensor, "children D"],
    num_clusters: int | Sequence[int],
    *,
    metric: Literal["cosine", "euclidean"] = "cosine",
    min_ratio: float = 0.1,
    max_ratio: float = 5.0,
    nested: Literal["up", "down"] = "up",
    max_iters: int = 100,
    tolerance: float = 1e-6,
    restarts: int = 4,
    seed: int = 0,
    fingerprint: str | None = None,
) -> Clusters:
    r"""Cluster token embeddings by size-constrained k-means: k-means++, then the cheapest
    assignment within the bounds.

        min sum_w d(e_w, c_{k(w)})
        with  min_ratio n / K <= children of each cluster <= max_ratio n / K

    Algorithms 1 and 2 of the HDLM paper, with one difference: the size control is optimal, where
    theirs is greedy. So a token of an oversized cluster moves to its second-best cluster only if
    that one is below its maximum size, an undersized cluster takes tokens only from clusters above
    their minimum size, and the bounds hold for the result. The objective never increases.

    Several levels are nested. ``"up"`` clusters the tokens, then the centroids, each weighted by
    its tokens. ``"down"`` splits the tokens into the coarsest clusters, then each of these into
    equally many. The bounds hold for the children of each cluster, at every level. The result is a
    deterministic function of the arguments.

    Args:
        embeddings: one row per token, finite; no row of zeros under cosine.
        num_clusters: number of clusters of each level, finest first; strictly decreasing and less
            than V.
        metric: ``"cosine"``: rows are normalised and d is 1 - cosine; ``"euclidean"``: d is the
            squared distance.
        min_ratio: minimum number of children of a cluster, as a fraction of the mean; at least 1
            child in any case.
        max_ratio: maximum number of children of a cluster, as a multiple of the mean.
        nested: order in which several levels are built, ``"up"`` or ``"down"``.
        max_iters: maximum number of k-means iterations.
        tolerance: k-means stops once half the mean squared move of the centroids (1 - cosine for
            cosine distance) is at most this fraction of the data's mean squared distance from its
            mean (of 1 for cosine distance).
        restarts: number of seedings; the one with the lowest unconstrained objective is used.
        seed: seed of the random generator.
        fingerprint: fingerprint of the vocabulary of the rows; stored in the tree and in the file.

    Raises:
        TypeError: embeddings not floating point, or an argument of another type.
        ValueError: embeddings empty, not (V, D), NaN or infinite; zero rows under cosine; fewer
            distinct rows than clusters; counts out of range; bounds that no assignment meets.

    Example:
        >>> tokens = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
        >>> semantic_clusters(tokens, 2).tree().levels
        (4, 2, 1)
    """
    counts = _check_counts(num_clusters)
    rows = _check_embeddings(embeddings, counts[0], metric)
    require(nested in ("up", "down"), f"nested is {nested!r}, must be 'up' or 'down'")
    edges = enumerate(pairwise([len(rows), *counts]))
    bounds = [_bounds(level, fine, coarse, min_ratio, max_ratio) for level, (fine, coarse) in edges]
    check_count("max_iters", max_iters)
    check_count("restarts", restarts)
    check_number("tolerance", tolerance, 0, math.inf, "at least 0")
    generator = Generator().manual_seed(check_count("seed", seed, 0))
    if metric == "cosine":
        # so that squares neither overflow nor underflow
        rows = rows / rows.abs().amax(1, keepdim=True)
        points = Points(rows / rows.norm(dim=1, keepdim=True), cosine=True)
        centre = points.rows.new_zeros(points.rows.shape[1])
    else:
        # distances are differences of squares, with the least rounding error near the origin
        centre = rows.mean(0)
        points = Points(rows - centre, cosine=False)

    def run(subset: Points, lower: Tensor, upper: Tensor) -> Fit:
        return fit(subset, lower, upper, max_iters, tolerance, restarts, generator)

    make = _upwards if nested == "up" else _downwards
    parents, iterations = make(points, counts, bounds, run)
    labels = _ancestors(parents)
    levels = list(zip(labels, counts, strict=True))
    centroids = [
        points.centroids(label, points.rows[label.argsort(stable=True)][:k]) for label, k in levels
    ]
    return Clusters(
        parents=tuple(parents),
        centroids=tuple(c + centre for c in centroids),
        coherence=tuple(_coherence(points.rows + centre, label, k) for label, k in levels),
        objective=tuple(
            points.objective(label, c) for label, c in zip(labels, centroids, strict=True)
        ),
        iterations=tuple(iterations),
        metric=metric,
        source=Clusters.source_of(embeddings),
        fingerprint=fingerprint,
    )


def _check_counts(num_clusters: Any) -> list[int]:
    """Check ``num_clusters`` and return the number of clusters of each level, finest first."""
    several = isinstance(num_clusters, Sequence) and not isinstance(num_clusters, str)
    numbers = list(num_clusters) if several else [num_clusters]
    require(len(numbers) > 0, "num_clusters is empty, must hold one number of clusters per level")
    counts = [
        check_count(f"num_clusters[{i}]" if several else "num_clusters", k)
        for i, k in enumerate(numbers)
    ]
    for fine, coarse in pairwise(counts):
        require(
            coarse < fine,
            f"num_clusters is {counts}, must decrease: every level is coarser than the one below",
        )
    return counts


def _check_embeddings(
    embeddings: Tensor, num_clusters: int, metric: str
) -> Float[Tensor, "children D"]:
    """Check ``embeddings`` and return the rows to cluster, float32 or float64, on the CPU."""
    require(
        metric in ("cosine", "euclidean"), f"metric is {metric!r}, must be 'cosine' or 'euclidean'"
    )
    if not isinstance(embeddings, Tensor) or not embeddings.is_floating_point():
        got = embeddings.dtype if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise TypeError(
            f"embeddings has type {got}, must be a floating-point tensor of shape (V, D)"
        )
    require(
        embeddings.ndim == 2 and embeddings.numel() > 0,
        f"embeddings has shape {tuple(embeddings.shape)}, must be (V, D), one row per token",
    )
    rows = embeddings.detach().cpu()
    rows = rows if rows.dtype == torch.float64 else rows.float()
    bad = ~rows.isfinite().all(1)
    if bool(bad.any()):
        raise ValueError(
            f"embeddings holds NaN or inf in row {int(bad.nonzero()[0])}, must be finite"
        )
    zero = (rows == 0).all(1)
    if metric == "cosine" and bool(zero.any()):
        raise ValueError(
            f"embeddings is zero in row {int(zero.nonzero()[0])} ({int(zero.sum())} such rows), "
            "must have a "
            "direction: use metric='euclidean' or pass other embeddings of these tokens"
        )
    require(
        num_clusters < len(rows),
        f"num_clusters is {num_clusters}, must be less than the {len(rows)} rows of embeddings: "
        "clusters are coarser",
    )
    # + 0.0 makes -0.0 the same as 0.0
    different = len({row.tobytes() for row in (rows + 0.0).numpy()})
    require(
        num_clusters <= different,
        f"num_clusters is {num_clusters}, must be at most {different}, the number of different "
        "rows of embeddings",
    )
    return rows


def _bounds(
    level: int, children: int, num_clusters: int, min_ratio: float, max_ratio: float
) -> Bounds:
    """Return the minimum and maximum number of children of a cluster.

    Exact if ratio times mean is an integer.
    """
    min_share = Fraction(repr(check_number("min_ratio", min_ratio, 0, 1, "in [0, 1]")))
    max_share = Fraction(repr(check_number("max_ratio", max_ratio, 1, 1e9, "in [1, 1e9]")))
    mean = Fraction(children, num_clusters)
    lower = max(math.ceil(min_share * mean), 1)
    upper = min(math.floor(max_share * mean), children)
    division = f"{children} {'tokens' if level == 0 else 'clusters'} into {num_clusters} clusters"
    require(
        lower * num_clusters <= children,
        f"min_ratio is {min_ratio}: at least {lower} per cluster, {lower * num_clusters} in total, "
        f"to divide {division}; "
        f"must be at most {float(Fraction(children // num_clusters) / mean):.6g}",
    )
    require(
        upper * num_clusters >= children,
        f"max_ratio is {max_ratio}: at most {upper} per cluster, {upper * num_clusters} in total, "
        f"to divide {division}; "
        f"must be at least {float(Fraction(-(-children // num_clusters)) / mean):.6g}",
    )
    return lower, upper


def _upwards(
    points: Points, counts: list[int], bounds: list[Bounds], run: FitFunction
) -> tuple[list[Tensor], list[int]]:
    """Cluster the tokens, then repeatedly the centroids of the level below.

    A centroid has the total weight of its tokens. So the objective of a level is that of the tokens
    up to a constant, since sum_w |e_w - c|^2 = sum_w |e_w - m|^2 + n |m - c|^2, and sum_w u_w.c =
    |sum_w u_w| m.c for directions.
    """
    parents = []
    iterations = []
    for count, (lower, upper) in zip(counts, bounds, strict=True):
        result = run(points, torch.full((count,), lower), torch.full((count,), upper))
        parents.append(result.label)
        iterations.append(len(result.history))
        points = Points(result.centroids, points.cosine, points.masses(result.label, count))
    return parents, iterations


def _downwards(
    points: Points, counts: list[int], bounds: list[Bounds], run: FitFunction
) -> tuple[list[Tensor], list[int]]:
    """Split the tokens into the coarsest clusters, then each of these, within bounds that the finer
    levels can meet.

    The number of children of each cluster is fixed beforehand, as evenly as possible. The bounds of
    a cluster with k finest clusters below it are k times the bounds of a finest cluster. So every
    split is feasible.
    """
    lower, upper = bounds[0]
    above = [torch.arange(fine) * coarse // fine for fine, coarse in pairwise(counts)]
    # number of finest clusters at or below each cluster
    finest = [torch.ones(counts[0], dtype=torch.int64)]
    for parent in above:
        finest.append(
            torch.zeros(int(parent[-1]) + 1, dtype=torch.int64).index_add_(0, parent, finest[-1])
        )
    label = torch.zeros(len(points.rows), dtype=torch.int64)
    iterations: list[int] = []
    for parent, finest_counts in zip(
        [torch.zeros(counts[-1], dtype=torch.int64), *reversed(above)],
        reversed(finest),
        strict=True,
    ):
        finer = torch.empty_like(label)
        longest = 0
        for cluster in range(int(parent[-1]) + 1):
            children = (parent == cluster).nonzero()[:, 0]
            tokens = (label == cluster).nonzero()[:, 0]
            result = run(
                points.take(tokens),
                finest_counts[children] * lower,
                finest_counts[children] * upper,
            )
            finer[tokens] = children[result.label]
            longest = max(longest, len(result.history))
        label = finer
        iterations.insert(0, longest)
    return [label, *above], iterations


def _ancestors(parents: Sequence[Tensor]) -> list[Tensor]:
    """Return the cluster of every token, at every level."""
    labels = [parents[0]]
    for parent in parents[1:]:
        labels.append(parent[labels[-1]])
    return labels


def _coherence(
    rows: Float[Tensor, "children D"], label: Int64[Tensor, "children"], num_clusters: int
) -> Float[Tensor, "parents"]:
    """Return the mean cosine of the members of each cluster to their mean.

    A row of zeros counts 0.
    """
    mean = Points(rows, cosine=False).centroids(label, rows[:1].expand(num_clusters, -1))
    cosine = torch.nn.functional.cosine_similarity(rows, mean[label])
    total = rows.new_zeros(num_clusters).index_add_(0, label, cosine)
    return total / torch.bincount(label, minlength=num_clusters)
