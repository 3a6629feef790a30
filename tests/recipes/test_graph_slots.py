"""Graphs as sequences of ids, and what is refused."""

import networkx as nx
import numpy as np
import pytest
from refusals import refuses

from recipes.domains.graphs.slots import TYPE, Slots, check_graph

SLOTS = Slots(6, ("C", "N"), ("single", "double"))


def typed(seed, count=5):
    graph = nx.gnp_random_graph(count, 0.5, seed=seed)
    nx.set_node_attributes(graph, {node: "CN"[(node + seed) % 2] for node in graph}, TYPE)
    kinds = ("single", "double")
    nx.set_edge_attributes(graph, {e: kinds[sum(e) % 2] for e in graph.edges}, TYPE)
    return graph


def same(left, right):
    return nx.utils.graphs_equal(left, right)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_graph_comes_back(count):
    for seed in range(10):
        graph = typed(seed, count)
        ids = SLOTS.encode(graph)
        assert ids.shape == (22,) == (len(SLOTS.positions),)
        assert same(SLOTS.decode(ids), graph)


def test_positions_are_the_number_of_nodes_the_nodes_and_the_pairs():
    path = nx.path_graph(3)
    slots = Slots(4)
    assert slots.positions == ("size", *["node"] * 4, *["edge"] * 6)
    assert slots.alphabets == {
        "size": ("1", "2", "3", "4"),
        "node": ("node",),
        "edge": ("none", "edge"),
    }
    #                                         01 02 03 12 13 23
    assert slots.encode(path).tolist() == [2, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0]
    given = slots.given(slots.encode(path)[None])[0]
    assert given.tolist() == [True] * 5 + [False, False, True, False, True, True]
    typed_given = Slots(4, ("a", "b")).given(slots.encode(path)[None])[0]
    assert typed_given.tolist()[:5] == [True, False, False, False, True]


def test_what_is_absent_is_ignored():
    ids = SLOTS.encode(typed(0))
    noisy = np.where(SLOTS.given(ids[None])[0], 1, ids)
    noisy[0] = ids[0]
    assert same(SLOTS.decode(noisy), typed(0))


LOOP = nx.Graph([(0, 1), (1, 1)])
test_other_graphs_are_refused = refuses(r"""
    Slots(5).encode(nx.path_graph(6)) | ValueError | graph: has 6 nodes, must have 2 to 5, the
        number of slots
    Slots(5).encode(nx.empty_graph(1), 'row 3') | ValueError | row 3: has 1 nodes, must have 2 to 5
    Slots(5).encode(nx.DiGraph([(0, 1)])) | ValueError | graph: is directed, must be undirected
    Slots(5).encode(nx.MultiGraph([(0, 1)])) | ValueError | graph: may have several edges between
    Slots(5).encode(LOOP) | ValueError | graph: has an edge from node 1 to itself, must have none
    Slots(5).encode([(0, 1)]) | TypeError | graph: is list, must be a graph of networkx
    SLOTS.encode(nx.path_graph(2)) | ValueError | graph: node 0: has type None, must be one of
        'C', 'N'
    SLOTS.decode(np.zeros(5)) | ValueError | ids have shape .5,., must be .22,.: the
        number of nodes
    Slots(1) | ValueError | slots=1: must be at least 2, a pair of nodes
    Slots(3, ()) | ValueError | node_types=.*: must be distinct names, none is 'none'
    Slots(3, edge_types=('a', 'a')) | ValueError | edge_types=.'a', 'a'.: must be distinct names
    Slots(3, edge_types=('none',)) | ValueError | edge_types=.'none',.: must be distinct names
""")


def test_graphs_of_networkx_are_accepted():
    check_graph(nx.Graph([("a", "b")]), "graph")
