"""Distances of the statistics of graphs, by the protocol of GRAN (Liao et al. 2019), SPECTRE
(Martinkus et al. 2022) and DiGress (Vignac et al. 2023).
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import networkx as nx
import numpy as np
from jaxtyping import Bool, Float
from scipy.spatial.distance import cdist

from recipes.domains.graphs.orbits import orbit_counts
from recipes.domains.graphs.slots import TYPE

BINS = 100
"""Number of intervals of [0, 1] for clustering coefficients."""
WIDTHS = {"degree": 1.0, "clustering": 0.1, "orbit": 30.0}
"""Width of the kernel of each statistic."""

Adjacency = Bool[np.ndarray, "n n"]


def mmd(left: Float[np.ndarray, "N D"], right: Float[np.ndarray, "M D"], width: float) -> float:
    r"""Return the squared maximum mean discrepancy of two sets of features.

    .. math:: \overline{k(l, l')} + \overline{k(r, r')} - 2 \overline{k(l, r)}, \qquad
        k(a, b) = e^{-d^2 / (2 w^2)},\ d = \tfrac12 \sum_i |a_i - b_i|

    The means are over all pairs, those of a graph with itself among them: two samples of one
    distribution have about 1/N + 1/M times the variance, not 0.

    Raises:
        ValueError: no features on a side, or of different numbers.
    """
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise ValueError(
            f"features have shapes {left.shape}, {right.shape}: must be (N, D), (M, D)"
        )
    if not len(left) or not len(right):
        raise ValueError(f"there are {len(left)} and {len(right)} graphs: must be at least 1")

    def mean(a: Float[np.ndarray, "N D"], b: Float[np.ndarray, "M D"]) -> float:
        distance = cdist(a, b, "cityblock") / 2
        return float(np.exp(-(distance**2) / (2 * width**2)).mean())

    return mean(left, left) + mean(right, right) - 2 * mean(left, right)


def degrees(adjacency: Adjacency, top: int) -> Float[np.ndarray, " D"]:
    """Return the share of the nodes of each degree, 0 to top."""
    return np.bincount(adjacency.sum(0), minlength=top + 1) / len(adjacency)


def clustering(adjacency: Adjacency) -> Float[np.ndarray, " D"]:
    """Return the share of the nodes whose clustering coefficient is in each interval.

    It is the share of the pairs of neighbours that are connected; 0 with fewer than two neighbours.
    """
    a = adjacency.astype(np.int64)
    closed = np.diag(a @ a @ a)
    degree = a.sum(0)
    possible = degree * (degree - 1)
    coefficient = np.divide(closed, possible, out=np.zeros(len(a)), where=possible > 0)
    return np.histogram(coefficient, BINS, (0.0, 1.0))[0] / len(a)


def mean_orbits(adjacency: Adjacency) -> Float[np.ndarray, " 15"]:
    """Return the mean number of each orbit of a node."""
    return orbit_counts(adjacency).mean(0)


def statistics(graphs: Sequence[Adjacency], top: int) -> dict[str, Float[np.ndarray, "N D"]]:
    """Return the features of graphs whose largest degree is at most ``top``, by their names."""
    functions: dict[str, Callable[[Adjacency], np.ndarray]] = {
        "degree": lambda a: degrees(a, top),
        "clustering": clustering,
        "orbit": mean_orbits,
    }
    return {name: np.stack([call(one) for one in graphs]) for name, call in functions.items()}


def distances(
    samples: Sequence[Adjacency], held_out: Sequence[Adjacency], train: Sequence[Adjacency]
) -> dict[str, float]:
    """Return the distances of samples from held-out graphs, and those of training graphs.

    The second are the floor, of a model that draws its training data. ``ratio`` is the mean over
    statistics of the quotients, as DiGress reports; 1 is best, less is due to chance.

    Args:
        samples: samples of the model.
        held_out: graphs that no model was trained on.
        train: training graphs; the first ones are compared, as many as there are samples.

    Raises:
        ValueError: no graphs on a side.
    """
    several = {"samples": samples, "held_out": held_out, "train": train}
    for name, graphs in several.items():
        if not len(graphs):
            raise ValueError(f"{name} is empty: must have at least one graph")
    top = max(len(one) for graphs in several.values() for one in graphs)
    features = [statistics(one, top) for one in (samples, held_out, train[: len(samples)])]
    of_samples, of_held_out, of_train = features
    result = {}
    ratios = []
    for name, width in WIDTHS.items():
        distance = mmd(of_samples[name], of_held_out[name], width)
        floor = mmd(of_train[name], of_held_out[name], width)
        result |= {f"{name}_mmd": distance, f"{name}_mmd_of_train": floor}
        ratios.append(distance / floor if floor > 0 else np.nan)
    return result | {"ratio": float(np.mean(ratios))}


def connected(graphs: Sequence[nx.Graph]) -> float:
    """Return the share of connected graphs."""
    return sum(map(nx.is_connected, graphs)) / len(graphs)


def different(graphs: Sequence[nx.Graph]) -> list[nx.Graph]:
    """Return one graph of each class of isomorphic graphs, of equal types of nodes and edges."""
    classes: dict[Hashable, list[nx.Graph]] = {}
    for graph in graphs:
        others = classes.setdefault(_key(graph), [])
        if not any(_isomorphic(graph, other) for other in others):
            others.append(graph)
    return [graph for others in classes.values() for graph in others]


def unknown(graphs: Sequence[nx.Graph], train: Sequence[nx.Graph]) -> list[nx.Graph]:
    """Return the graphs that are isomorphic to no training graph."""
    classes: dict[Hashable, list[nx.Graph]] = {}
    for graph in train:
        classes.setdefault(_key(graph), []).append(graph)
    return [
        graph
        for graph in graphs
        if not any(_isomorphic(graph, other) for other in classes.get(_key(graph), ()))
    ]


def _key(graph: nx.Graph) -> Hashable:
    """Return what isomorphic graphs have in common: types of nodes with the degrees beside them."""
    degree = dict(graph.degree)
    nodes = graph.nodes(data=TYPE)
    return tuple(sorted((str(kind), *sorted(degree[m] for m in graph[n])) for n, kind in nodes))


def _isomorphic(left: nx.Graph, right: nx.Graph) -> bool:
    def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return one.get(TYPE) == other.get(TYPE)

    return bool(nx.is_isomorphic(left, right, node_match=same, edge_match=same))


def measure(
    samples: Sequence[nx.Graph], held_out: Sequence[nx.Graph], train: Sequence[nx.Graph]
) -> dict[str, float]:
    """Return all metrics of samples.

    Args:
        samples: samples, whose types are those of ``Slots.decode``.
        held_out: graphs that the model was not trained on.
        train: training graphs.

    Returns:
        those of ``distances``; the share of connected graphs, of different ones among all, and of
        those that training data lack among the different ones; the share of connected held-out
        graphs.

    Raises:
        ValueError: no graphs on a side.
    """
    sides = [
        [nx.to_numpy_array(one, weight=None) > 0 for one in side]
        for side in (samples, held_out, train)
    ]
    result = distances(*sides)
    once = different(samples)
    return result | {
        "connected": connected(samples),
        "connected_of_data": connected(held_out),
        "uniqueness": len(once) / len(samples),
        "novelty": len(unknown(once, train)) / len(once),
    }
