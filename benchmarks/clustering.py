"""k-means of ddlib against scikit-learn's at equal size bounds: objective and CPU time, seed by
seed.

    python -m benchmarks.clustering --seeds 5

50,257 rows of 768 from 300 overlapping Gaussians of unequal shares, 64 clusters, Euclidean, 4
seedings each. The bounds (a tenth to five times the mean size) are wide enough that scikit-learn,
which has none, satisfies them: a seed where it does not is an error, as the two would not have
solved the same problem.
"""

import argparse
from typing import Any

import torch
from sklearn.cluster import KMeans
from torch import Tensor

import ddlib as dd
from benchmarks.measuring import medians, now, over_ours, report

ROWS = 50_257
WIDTH = 768
CLUSTERS = 64
GAUSSIANS = 300
RESTARTS = 4
LOW = 0.1
HIGH = 5.0


def embeddings(seed: int) -> Tensor:
    """Return (ROWS, WIDTH) float32 vectors."""
    generator = torch.Generator().manual_seed(seed)
    centres = 0.03 * torch.randn(GAUSSIANS, WIDTH, generator=generator)
    share = torch.rand(GAUSSIANS, generator=generator) + 0.3
    component = torch.multinomial(share, ROWS, True, generator=generator)
    return centres[component] + 0.1 * torch.randn(ROWS, WIDTH, generator=generator)


def ours(rows: Tensor, seed: int) -> Tensor:
    """Return the cluster of each row."""
    bounds: dict[str, Any] = dict(min_ratio=LOW, max_ratio=HIGH)
    return dd.hierarchies.semantic_clusters(
        rows, CLUSTERS, metric="euclidean", restarts=RESTARTS, seed=seed, **bounds
    ).of_tokens()


def sklearn(rows: Tensor, seed: int) -> Tensor:
    """Return the cluster of each row."""
    return torch.from_numpy(
        KMeans(CLUSTERS, n_init=RESTARTS, random_state=seed).fit(rows.numpy()).labels_
    ).long()


def objective(rows: Tensor, label: Tensor) -> float:
    """Return the sum of squared distances from the clusters' means.

    Raises:
        AssertionError: a cluster's size is out of bounds.
    """
    sizes = label.bincount(minlength=CLUSTERS)
    mean = ROWS / CLUSTERS
    if int(sizes.min()) < LOW * mean or int(sizes.max()) > HIGH * mean:
        raise AssertionError(
            f"sizes from {int(sizes.min())} to {int(sizes.max())} are out of bounds: not compared"
        )
    means = torch.zeros(CLUSTERS, WIDTH).index_add_(0, label, rows) / sizes[:, None]
    return float((rows - means[label]).square().sum(dtype=torch.float64))


def measure(seeds: int) -> dict[str, Any]:
    """Return objectives and CPU seconds of both; the ratios are of their means and medians."""
    objectives: dict[str, list[float]] = {"ours": [], "sklearn": []}
    timings: dict[str, list[float]] = {"ours": [], "sklearn": []}
    for seed in range(seeds):
        rows = embeddings(seed)
        for name, method in (("ours", ours), ("sklearn", sklearn)):
            begin = now()
            label = method(rows, seed)
            timings[name].append(now() - begin)
            objectives[name].append(objective(rows, label))
        print(seed, {name: values[-1] for name, values in objectives.items()}, flush=True)
    means = {name: sum(values) / seeds for name, values in objectives.items()}
    ratios = over_ours(means, "objective") | over_ours(medians(timings), "time")
    return {"ratios": ratios, "objectives": objectives, "cpu_seconds": timings}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report("clustering", [measure(options.seeds)])


if __name__ == "__main__":
    main()
