"""Size-constrained k-means (seeding, assignment, centroids) for Euclidean and cosine distance."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from ddlib.hierarchies.clusters.sizes import bounded_assignment

_ENTRIES = 2**22
"""Largest number of distances computed at a time."""
_SAMPLE = 512
"""Rows per cluster of the subsample on which each restart is fitted."""


@dataclass(frozen=True)
class Points:
    """Data to cluster: rows (children, D), unit vectors if ``cosine``, and a weight per row (1 if
    None).
    """

    rows: Float[Tensor, "children D"]
    cosine: bool
    weights: Float[Tensor, "children"] | None = None

    @cached_property
    def norms(self) -> Float[Tensor, "children"]:
        """Squared length of each row."""
        return torch.cat([rows.square().sum(1) for rows in self.rows.split(8192)])

    def costs(
        self, centroids: Float[Tensor, "parents D"]
    ) -> Iterator[Float[Tensor, "kept parents"]]:
        """Yield, for chunks of rows, weight times squared distance (or times 1 - cosine) to every
        centroid.
        """
        size = self._chunk(len(centroids))
        for start in range(0, len(self.rows), size):
            chunk = slice(start, start + size)
            # |x - c|^2 = |c|^2 - 2 x.c + |x|^2; for unit vectors half of it is 1 - x.c
            if self.cosine:
                cost = (self.rows[chunk] @ centroids.T).neg_().add_(1)
            else:
                cost = (self.rows[chunk] @ centroids.T).mul_(-2).add_(centroids.square().sum(1))
                cost.add_(self.norms[chunk, None])
            cost.clamp_min_(0)
            yield cost if self.weights is None else cost.mul_(self.weights[chunk, None])

    @staticmethod
    def _chunk(num_clusters: int) -> int:
        """Return the number of rows whose distances are computed at a time."""
        return max(_ENTRIES // num_clusters, 1)

    def take(self, index: Int64[Tensor, "kept"]) -> "Points":
        """Return a subset of the points."""
        return Points(
            self.rows[index], self.cosine, None if self.weights is None else self.weights[index]
        )

    def sums(
        self, label: Int64[Tensor, "children"], num_clusters: int
    ) -> Float[Tensor, "parents D"]:
        """Return the weighted sum of the rows of each cluster."""
        rows = self.rows if self.weights is None else self.rows * self.weights[:, None]
        return rows.new_zeros(num_clusters, rows.shape[1]).index_add_(0, label, rows)

    def masses(
        self, label: Int64[Tensor, "children"], num_clusters: int
    ) -> Float[Tensor, "parents"]:
        """Return the weight with which each cluster's centroid replaces its members in the
        objective.
        """
        if self.cosine:
            return self.sums(label, num_clusters).norm(dim=1)
        weights = self.rows.new_ones(len(label)) if self.weights is None else self.weights
        return weights.new_zeros(num_clusters).index_add_(0, label, weights)

    def centroids(
        self, label: Int64[Tensor, "children"], before: Float[Tensor, "parents D"]
    ) -> Float[Tensor, "parents D"]:
        """Return the minimiser of each cluster's cost: the mean, or its direction; ``before`` if it
        is undefined.
        """
        sums = self.sums(label, len(before))
        size = (sums.norm(dim=1) if self.cosine else self.masses(label, len(before)))[:, None]
        return torch.where(size > 0, sums / torch.where(size > 0, size, 1), before)

    def objective(
        self, label: Int64[Tensor, "children"], centroids: Float[Tensor, "parents D"]
    ) -> float:
        """Return the total cost of the rows at the centroids of their clusters."""
        return sum(
            float(cost.gather(1, labels[:, None]).sum(dtype=torch.float64))
            for cost, labels in zip(
                self.costs(centroids), label.split(self._chunk(len(centroids))), strict=True
            )
        )


@dataclass(frozen=True)
class Fit:
    """Result of k-means: cluster of each child, centroids, objective of every iteration (never
    increasing).
    """

    label: Int64[Tensor, "children"]
    centroids: Float[Tensor, "parents D"]
    history: tuple[float, ...]


def seeds(points: Points, num_clusters: int, generator: Generator) -> Float[Tensor, "parents D"]:
    """Draw initial centroids by greedy k-means++.

    Candidates in proportion to their cost, the best of a few is kept.

    Arthur & Vassilvitskii, "k-means++: the advantages of careful seeding" (SODA 2007). The cost is
    the squared distance. For cosine distance the HDLM paper squares 1 - cosine; but 1 - cosine is
    already half a squared distance, and the bound on the expected objective holds for that.
    """
    trials = 2 + int(math.log(num_clusters))
    centres = [int(torch.randint(len(points.rows), (), generator=generator))]
    cost = torch.cat(list(points.costs(points.rows[centres])))[:, 0]
    for _ in range(num_clusters - 1):
        mass = cost.double().cumsum(0)
        targets = torch.rand(trials, dtype=torch.float64, generator=generator) * mass[-1]
        candidates = torch.searchsorted(mass, targets, right=True).clamp_max(len(mass) - 1)
        cost_with = torch.minimum(
            torch.cat(list(points.costs(points.rows[candidates]))), cost[:, None]
        )
        best = int(cost_with.sum(0).argmin())
        centres.append(int(candidates[best]))
        cost = cost_with[:, best]
    return points.rows[centres]


def lloyd(
    points: Points,
    centroids: Float[Tensor, "parents D"],
    lower: Int64[Tensor, "parents"],
    upper: Int64[Tensor, "parents"],
    max_iters: int,
    tolerance: float,
) -> Fit:
    """Alternate optimal assignment within the size bounds and optimal centroids, until convergence.

    Neither step increases the objective, with or without bounds (Bradley, Bennett & Demiriz,
    "Constrained k-means clustering", 2000). If the nearest centroids satisfy the bounds, no
    (children, parents) matrix is formed.

    Args:
        points: data to cluster.
        centroids: initial centroids.
        lower: minimum number of children of each cluster, at least 1.
        upper: maximum number of children of each cluster.
        max_iters: maximum number of iterations.
        tolerance: stop once half the mean squared move of the centroids (1 - cosine for cosine
            distance) is at most this fraction of the points' mean squared distance from their mean
            (of 1 for cosine distance).
    """
    scale = (
        1.0 if points.cosine else float(points.norms.mean() - points.rows.mean(0).square().sum())
    )
    prices = np.zeros(len(centroids))
    label = torch.full((len(points.rows),), -1)
    history = []
    for _ in range(max_iters):
        nearest = [costs.min(1) for costs in points.costs(centroids)]
        before = label
        label = torch.cat([part.indices for part in nearest])
        objective = float(sum(part.values.sum(dtype=torch.float64) for part in nearest))
        sizes = torch.bincount(label, minlength=len(centroids))
        if bool(((sizes < lower) | (sizes > upper)).any()):
            costs = np.concatenate([part.double().numpy() for part in points.costs(centroids)])
            assigned, prices = bounded_assignment(costs, lower.numpy(), upper.numpy(), prices)
            objective = float(costs[np.arange(len(assigned)), assigned].sum())
            label = torch.from_numpy(assigned)
        history.append(objective)
        after = points.centroids(label, centroids)
        change = float((after - centroids).square().sum(1).mean()) / 2
        centroids = after
        if change <= tolerance * scale or torch.equal(before, label):
            break
    return Fit(label, centroids, tuple(history))


def fit(
    points: Points,
    lower: Int64[Tensor, "parents"],
    upper: Int64[Tensor, "parents"],
    max_iters: int,
    tolerance: float,
    restarts: int,
    generator: Generator,
) -> Fit:
    """Run ``lloyd`` from the best of several starts, fitted on subsamples without bounds and scored
    on all points.
    """
    num_rows = len(points.rows)
    num_clusters = len(lower)
    size = min(num_rows, _SAMPLE * num_clusters)
    starts = []
    for _ in range(restarts):
        sample = points.take(torch.randperm(num_rows, generator=generator)[:size])
        free = torch.ones_like(lower), torch.full_like(upper, size)
        start = lloyd(
            sample, seeds(sample, num_clusters, generator), *free, max_iters, tolerance
        ).centroids
        starts.append(
            (
                sum(float(costs.amin(1).sum(dtype=torch.float64)) for costs in points.costs(start)),
                start,
            )
        )
    best = min(starts, key=lambda pair: pair[0])[1]
    return lloyd(points, best, lower, upper, max_iters, tolerance)
