"""Hierarchies: levels of states and the transition matrices between them (WHERE tokens jump)."""

from ddlib.hierarchies.base import Hierarchy
from ddlib.hierarchies.builders import csv_parents, random_parents, soft_memberships, table_parents
from ddlib.hierarchies.clusters import Clusters, load_clusters, save_clusters, semantic_clusters
from ddlib.hierarchies.flat import Flat
from ddlib.hierarchies.kernel_levels import Blur, Kernels, Soft
from ddlib.hierarchies.kernels import Dense, Kernel
from ddlib.hierarchies.maps import Map, parent_map
from ddlib.hierarchies.similarities import blosum62
from ddlib.hierarchies.sparse_kernels import Banded, Sparse
from ddlib.hierarchies.tree import Tree
from ddlib.hierarchies.wordnet import wordnet_table

__all__ = [
    "Banded",
    "Blur",
    "Clusters",
    "Dense",
    "Flat",
    "Hierarchy",
    "Kernel",
    "Kernels",
    "Map",
    "Soft",
    "Sparse",
    "Tree",
    "blosum62",
    "csv_parents",
    "load_clusters",
    "parent_map",
    "random_parents",
    "save_clusters",
    "semantic_clusters",
    "soft_memberships",
    "table_parents",
    "wordnet_table",
]
