"""Counts of orbits: places of a node in connected induced subgraphs of two to four nodes."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Int

ORBITS = 15
"""Number of orbits; numbered as by Przulj (2007) and ORCA (Hocevar & Demsar 2014)."""


def orbit_counts(adjacency: Bool[np.ndarray, "n n"]) -> Int[np.ndarray, "n 15"]:
    """Count the orbits of every node.

    Orbit 0 is the end of an edge, 1 to 3 are places in subgraphs of three nodes, 4 to 14 in those
    of four. All subsets of nodes are visited: 4,845 of 20 nodes.

    Args:
        adjacency: symmetric, False on the diagonal.

    Example:
        >>> path = np.eye(3, k=1, dtype=bool) | np.eye(3, k=-1, dtype=bool)
        >>> orbit_counts(path)[:, :4].tolist()
        [[1, 1, 0, 0], [2, 0, 1, 0], [1, 1, 0, 0]]
    """
    count = len(adjacency)
    result = np.zeros((count, ORBITS), dtype=np.int64)
    for size in (2, 3, 4):
        subsets = _subsets(count, size)
        if not len(subsets):
            continue
        code = np.zeros(len(subsets), dtype=np.int64)
        for bit, (i, j) in enumerate(combinations(range(size), 2)):
            code |= adjacency[subsets[:, i], subsets[:, j]].astype(np.int64) << bit
        orbits = _orbits_of_codes(size)[code]
        connected = orbits[:, 0] >= 0
        places = subsets[connected] * ORBITS + orbits[connected]
        result += np.bincount(places.ravel(), minlength=count * ORBITS).reshape(count, ORBITS)
    return result


@cache
def _subsets(count: int, size: int) -> Int[np.ndarray, "m k"]:
    return np.array(list(combinations(range(count), size)), dtype=np.int64).reshape(-1, size)


@cache
def _orbits_of_codes(size: int) -> Int[np.ndarray, "m k"]:
    """Return the orbit of each node for each set of edges, -1 where it is not connected.

    Up to four nodes the number of edges, the largest degree and the degree of the node determine
    the orbit, and their order is that of its number.
    """
    pairs = list(combinations(range(size), 2))
    keys: list[list[tuple[int, int, int]]] = []
    for code in range(2 ** len(pairs)):
        edges = [pair for bit, pair in enumerate(pairs) if code >> bit & 1]
        degrees = [sum(node in pair for pair in edges) for node in range(size)]
        keys.append(
            [(len(edges), max(degrees), degree) for degree in degrees]
            if _connected(edges, size)
            else []
        )
    first = {2: 0, 3: 1, 4: 4}[size]
    number = {key: first + n for n, key in enumerate(sorted({key for row in keys for key in row}))}
    rows = [[number[key] for key in row] or [-1] * size for row in keys]
    return np.array(rows, dtype=np.int64)


def _connected(edges: Sequence[tuple[int, int]], size: int) -> bool:
    reached = {0}
    for _ in range(size):
        reached |= {node for pair in edges if reached & set(pair) for node in pair}
    return len(reached) == size
