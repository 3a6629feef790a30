"""Semantic clustering: hierarchies from token embeddings, and their files."""

from ddlib.hierarchies.clusters.files import load_clusters, save_clusters
from ddlib.hierarchies.clusters.semantic import Clusters, semantic_clusters

__all__ = ["Clusters", "load_clusters", "save_clusters", "semantic_clusters"]
