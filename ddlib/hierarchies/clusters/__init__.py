"""Semantic clustering: hierarchies from token embeddings, and their files."""

from ddlib.hierarchies.clusters.files import load_clusters, save_clusters
from ddlib.hierarchies.clusters.semantic import Clusters, embeddings_hash, semantic_clusters

__all__ = ["Clusters", "embeddings_hash", "load_clusters", "save_clusters", "semantic_clusters"]
