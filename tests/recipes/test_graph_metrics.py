"""Statistics of graphs, against networkx and against counting by definition."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from recipes.domains.graphs import metrics
from recipes.domains.graphs.orbits import ORBITS, orbit_counts

SHAPES = {
    "path of 3": (nx.path_graph(3), 1),
    "triangle": (nx.complete_graph(3), 3),
    "path of 4": (nx.path_graph(4), 4),
    "star": (nx.star_graph(3), 6),
    "cycle": (nx.cycle_graph(4), 8),
    "paw": (nx.Graph([(0, 1), (1, 2), (2, 3), (3, 1)]), 9),
    "diamond": (nx.Graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]), 12),
    "clique": (nx.complete_graph(4), 14),
}
"""Connected graphs of three and four nodes, and the number of their first orbit."""
graphs = st.builds(
    lambda n, p, seed: nx.gnp_random_graph(n, p, seed=seed),
    st.integers(2, 8),
    st.sampled_from([0.2, 0.5, 0.8]),
    st.integers(0, 1000),
)


def matrix(graph):
    return nx.to_numpy_array(graph, sorted(graph)) > 0


def orbits_of(graph):
    """Nodes of each orbit of a small graph, by its automorphisms."""
    nodes = sorted(graph)
    moves = [
        order
        for order in itertools.permutations(nodes)
        if np.array_equal(matrix(graph), matrix(graph)[np.ix_(order, order)])
    ]
    return {frozenset(move[node] for move in moves) for node in nodes}


@pytest.mark.parametrize(("shape", "first"), SHAPES.values(), ids=SHAPES)
def test_orbits_of_small_graphs_are_those_of_their_automorphisms(shape, first):
    counts = orbit_counts(matrix(shape))
    own = slice(1, 4) if len(shape) == 3 else slice(4, ORBITS)
    assert (counts[:, own].sum(1) == 1).all(), "the graph is its own only connected subgraph"
    place = counts[:, own].argmax(1) + own.start
    assert place.min() == first
    classes = {frozenset(np.flatnonzero(place == orbit).tolist()) for orbit in set(place.tolist())}
    assert classes == orbits_of(shape)
    assert sorted(set(place.tolist())) == list(range(first, first + len(classes)))


@given(graphs)
def test_orbits_are_counts_of_induced_subgraphs(graph):
    """By definition: each connected subset of nodes is matched with the eight graphs."""
    counts = orbit_counts(matrix(graph))
    assert np.array_equal(counts[:, 0], [d for _, d in sorted(graph.degree)])
    triangles = nx.triangles(graph)
    assert np.array_equal(counts[:, 3], [triangles[node] for node in sorted(graph)])
    for name, (shape, first) in SHAPES.items():
        size = len(shape)
        number = sum(
            nx.is_isomorphic(graph.subgraph(nodes), shape)
            for nodes in itertools.combinations(graph, size)
        )
        last = first + len(orbits_of(shape))
        assert counts[:, first:last].sum() == size * number, name


@given(graphs)
def test_degrees_and_clustering_are_those_of_networkx(graph):
    a = matrix(graph)
    expected = np.bincount([d for _, d in graph.degree], minlength=9) / len(graph)
    assert np.allclose(metrics.degrees(a, 8), expected)
    coefficients = list(nx.clustering(graph).values())
    histogram = np.histogram(coefficients, 100, (0, 1))[0] / len(graph)
    assert np.allclose(metrics.clustering(a), histogram)


@given(graphs, st.randoms(use_true_random=False))
def test_statistics_do_not_depend_on_the_order_of_the_nodes(graph, random):
    order = list(range(len(graph)))
    random.shuffle(order)
    a = matrix(graph)
    one, other = (metrics.statistics([v], 8) for v in (a, a[np.ix_(order, order)]))
    assert all(np.allclose(one[name], other[name]) for name in metrics.WIDTHS)


def test_the_distance_is_that_of_two_points_by_hand():
    left = np.array([[1.0, 0.0], [0.0, 1.0]])
    right = np.array([[1.0, 0.0]])
    k = np.exp(-1 / (2 * 0.5**2))
    assert metrics.mmd(left, right, 0.5) == pytest.approx((1 + k) / 2 + 1 - (1 + k))
    assert metrics.mmd(left, left, 0.5) == 0


def test_other_graphs_are_farther_than_training_graphs():
    def drawn(p, first):
        return [nx.gnp_random_graph(10, p, seed=first + seed) for seed in range(60)]

    train, held_out, near, far = drawn(0.4, 0), drawn(0.4, 100), drawn(0.4, 200), drawn(0.7, 300)
    good = metrics.measure(near, held_out, train)
    bad = metrics.measure(far, held_out, train)
    # the kernel of clustering is so narrow that any two graphs differ
    for name, factor in (("degree", 5), ("clustering", 1.2), ("orbit", 5)):
        assert bad[f"{name}_mmd"] > factor * good[f"{name}_mmd"] > 0
        assert bad[f"{name}_mmd_of_train"] == good[f"{name}_mmd_of_train"] > 0
    assert good["ratio"] < 3 and bad["ratio"] > 10
    same = metrics.measure(train, held_out, train)
    assert same["ratio"] == pytest.approx(1) and same["novelty"] == 0


def test_isomorphic_graphs_count_once():
    path = nx.path_graph(4)
    moved = nx.relabel_nodes(path, {0: 2, 1: 0, 2: 3, 3: 1})
    typed = nx.path_graph(4)
    nx.set_edge_attributes(typed, "double", "type")
    every = [path, moved, nx.star_graph(3), typed]
    assert len(metrics.different(every)) == 3
    assert metrics.unknown(every, [moved]) == every[2:]


ONE = [np.zeros((2, 2), dtype=bool)]
test_missing_graphs_are_refused = refuses(r"""
    metrics.distances([], ONE, ONE) | ValueError | samples is empty: must have at least one
    metrics.distances(ONE, [], ONE) | ValueError | held_out is empty: must have at least one
    metrics.mmd(np.zeros((2, 3)), np.zeros((2, 4)), 1.0) | ValueError | features have shapes .2, 3.
    metrics.mmd(np.zeros((0, 3)), np.zeros((2, 3)), 1.0) | ValueError | there are 0 and 2 graphs
""")
