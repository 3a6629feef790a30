"""Graphs as the number of nodes, the nodes and the pairs of nodes."""

import torch

from ddlib.hierarchies import Blur
from ddlib.processes import GIDD, Hierarchical, Masked, Product, Uniform
from ddlib.schedules import Linear
from ddlib_models import GraphTransformer
from zoo.calls import seeded

EDGES = {
    "masks": Masked(3, Linear()),
    "uniform": Uniform(3, Linear()),
    "gidd": GIDD(3, 0.3),
    "blur": Hierarchical(Blur(3, [1.0]), Linear()),
}
"""Noise of three types of pairs."""


def product(slots, edges=EDGES["masks"], nodes=2):
    fields = [0] + [1] * slots + [2] * (slots * (slots - 1) // 2)
    processes = {"size": Masked(slots, Linear()), "node": Masked(nodes, Linear()), "edge": edges}
    return Product(processes, fields)


def graphs(slots, rows, nodes=2, edges=3, seed=0):
    """Graphs of 1 to M nodes, in the order of their number of nodes: ids (rows, L)."""
    generator = seeded(seed)
    size = torch.arange(rows) % slots + 1
    first, second = torch.triu_indices(slots, slots, 1)
    place = torch.arange(slots)
    node = torch.randint(nodes, (rows, slots), generator=generator) * (place < size[:, None])
    pair = torch.randint(edges, (rows, len(first)), generator=generator)
    pair = pair * ((first < size[:, None]) & (second < size[:, None]))
    return torch.cat([size[:, None] - 1, node, pair], 1)


def permuted(values, order, slots):
    """Ids or logits (L, ...) of a graph whose node ``order[i]`` becomes node i."""
    first, second = torch.triu_indices(slots, slots, 1)
    pair = torch.zeros(slots, slots, dtype=torch.int64)
    pair[first, second] = pair[second, first] = torch.arange(len(first))
    moved = pair[order[first], order[second]]
    return values[torch.cat([torch.zeros(1, dtype=torch.int64), 1 + order, 1 + slots + moved])]


def random_order(size, slots, seed=0):
    """A permutation of the first nodes, those that are present."""
    return torch.cat([torch.randperm(size, generator=seeded(seed)), torch.arange(size, slots)])


def network(process, seed=0, **options):
    """A network in which everything depends on everything."""
    options = {"dim": 8, "pair_dim": 6, "depth": 2, "heads": 2, "cond_dim": 8} | options
    model = GraphTransformer(process.sizes, **options)
    generator = seeded(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return model.eval()
