"""Size-constrained assignment: minimum-cost assignment of children to clusters with bounds on the
sizes, exact.
"""

from itertools import pairwise

import numpy as np
from jaxtyping import Float64, Int64

_SWEEPS = 4


def bounded_assignment(
    costs: Float64[np.ndarray, "children parents"],
    lower: Int64[np.ndarray, "parents"],
    upper: Int64[np.ndarray, "parents"],
    prices: Float64[np.ndarray, "parents"] | None = None,
) -> tuple[Int64[np.ndarray, "children"], Float64[np.ndarray, "parents"]]:
    r"""Compute the assignment of children to parents of least total cost whose cluster sizes lie
    within the bounds.

        min sum_i c(i, k_i)   with   lower_k <= #{i : k_i = k} <= upper_k

    The problem is a minimum-cost flow with one node per cluster. An edge a -> b has the cost of the
    cheapest move of a child from a to b; edges to and from a sink stand for free capacity of a
    cluster. Excess units follow shortest paths (Ahuja, Magnanti & Orlin 1993, section 9.7): a child
    moves to its second-best cluster, and displaces another child if that cluster is full. The dual
    variables are prices of the clusters. At the optimum every child is in a cluster that minimises
    cost plus price; a cluster with a positive price is at its upper bound, one with a negative
    price at its lower bound.

    Args:
        costs: any finite numbers.
        lower: minimum size of each cluster; their sum is at most the number of children.
        upper: maximum size of each cluster, at least ``lower``; their sum is at least the number of
            children.
        prices: initial prices; those of a similar problem save nearly all the work. The cost of the
            result does not depend on them.

    Returns:
        The cluster of each child, and the prices.
    """
    num_children, sink = costs.shape
    price = np.append(
        _prices(costs, lower, upper, np.zeros(sink) if prices is None else prices), 0.0
    )
    label = (costs + price[:sink]).argmin(1)
    sizes = np.bincount(label, minlength=sink)
    flow = np.where(
        price[:sink] > 0, upper, np.where(price[:sink] < 0, lower, sizes.clip(lower, upper))
    )
    excess = np.append(sizes - flow, flow.sum() - num_children)
    move = np.full((sink + 1, sink + 1), np.inf)
    for a in range(sink):
        move[a, :sink] = _cheapest_moves(costs, label, a, np.arange(sink))
    while (excess > 0).any():
        move[:sink, sink] = np.where(flow < upper, 0.0, np.inf)
        move[sink, :sink] = np.where(flow > lower, 0.0, np.inf)
        length = (move + price - price[:, None]).clip(0)  # negative only by rounding
        distance, path = _shortest_path(length, excess)
        price -= distance
        hops = list(pairwise(path))
        # children of equal cost move together: e.g. thousands of tokens that share one embedding
        movers = {a: _movers(costs, label, a, b, move[a, b]) for a, b in hops if sink not in (a, b)}
        capacity = [len(children) for children in movers.values()]
        capacity += [
            upper[a] - flow[a] if b == sink else flow[b] - lower[b]
            for a, b in hops
            if sink in (a, b)
        ]
        amount = int(min(excess[path[0]], -excess[path[-1]], *capacity))
        for a, b in hops:
            if b == sink:
                flow[a] += amount
            elif a == sink:
                flow[b] -= amount
            else:
                label[movers[a][:amount]] = b
        excess[path[0]] -= amount
        excess[path[-1]] += amount
        for a, b in hops:
            if sink in (a, b):
                continue
            moved = costs[movers[a][:amount]]
            # recompute only those moves for which a moved child was the cheapest
            stale = np.flatnonzero((moved - moved[:, a : a + 1] <= move[a, :sink]).any(0))
            move[a, stale] = _cheapest_moves(costs, label, a, stale)
            move[b, :sink] = np.minimum(move[b, :sink], (moved - moved[:, b : b + 1]).min(0))
            move[b, b] = np.inf
    return label, price[:sink] - price[sink]


def _cheapest_moves(
    costs: Float64[np.ndarray, "children parents"],
    label: Int64[np.ndarray, "children"],
    a: int,
    targets: Int64[np.ndarray, "kept_parents"],
) -> Float64[np.ndarray, "kept_parents"]:
    """Return the cost of the cheapest move of a child from cluster ``a`` to each target.

    Infinite for ``a`` itself.
    """
    members = np.flatnonzero(label == a)
    cheapest = (costs[members[:, None], targets] - costs[members, a][:, None]).min(
        0, initial=np.inf
    )
    cheapest[targets == a] = np.inf
    return cheapest


def _movers(
    costs: Float64[np.ndarray, "children parents"],
    label: Int64[np.ndarray, "children"],
    a: int,
    b: int,
    price: float,
) -> Int64[np.ndarray, "kept"]:
    """Return the children of ``a`` whose move to ``b`` costs at most ``price``."""
    members = np.flatnonzero(label == a)
    return members[costs[members, b] - costs[members, a] <= price]


def _shortest_path(
    length: Float64[np.ndarray, "m m"], excess: Int64[np.ndarray, "m"]
) -> tuple[Float64[np.ndarray, "m"], list[int]]:
    """Return the distances from the excess nodes, clipped at the nearest deficit node, and the path
    to that node.

    Bellman-Ford over the whole matrix; few rounds suffice, since paths have few hops.
    """
    distance = np.where(excess > 0, 0.0, np.inf)
    previous = np.full(len(excess), -1)
    while True:
        through = distance[:, None] + length
        best = through.argmin(0)
        reached = through[best, np.arange(len(best))]
        better = reached < distance
        if not better.any():
            break
        distance = np.where(better, reached, distance)
        previous = np.where(better, best, previous)
    path = [int(np.where(excess < 0, distance, np.inf).argmin())]
    nearest = distance[path[0]]
    while previous[path[-1]] >= 0:
        path.append(int(previous[path[-1]]))
    return np.minimum(distance, nearest), path[::-1]


def _prices(
    costs: Float64[np.ndarray, "children parents"],
    lower: Int64[np.ndarray, "parents"],
    upper: Int64[np.ndarray, "parents"],
    start: Float64[np.ndarray, "parents"],
) -> Float64[np.ndarray, "parents"]:
    """Compute prices at which few clusters violate their bounds, by coordinate ascent on the dual,
    cluster by cluster.

    Sweeps are skipped where the shortest paths are cheap enough.
    """
    num_children, num_parents = costs.shape
    price = start.copy()
    # a minimum over rows is several times faster than over columns
    priced = np.ascontiguousarray((costs + start).T)
    for _ in range(_SWEEPS):
        sizes = np.bincount(priced.argmin(0), minlength=num_parents)
        over = sizes - upper
        under = lower - sizes
        if np.maximum(over, under).clip(0).sum() <= num_children // 64 + num_parents:
            break
        for k in np.flatnonzero(
            (over > 0) | (under > 0) | ((price > 0) & (over < 0)) | ((price < 0) & (under < 0))
        ):
            priced[k] = np.inf
            leave = priced.min(0) - costs[:, k]  # the price of k at which each child leaves it
            ranks = [num_children - 1 - int(upper[k]), num_children - int(lower[k])]
            ordered = np.partition(leave, [r for r in ranks if 0 <= r < num_children])
            lowest = ordered[ranks[0]] if ranks[0] >= 0 else -np.inf
            highest = ordered[ranks[1]] if ranks[1] < num_children else np.inf
            price[k] = min(max(0.0, lowest), highest)
            priced[k] = costs[:, k] + price[k]
    return price
