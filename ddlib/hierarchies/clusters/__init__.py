"""Semantic clustering: hierarchies from embeddings of the words, and files that keep them."""

from ddlib.hierarchies.clusters.files import load_clusters, save_clusters
from ddlib.hierarchies.clusters.semantic import Clusters, embeddings_hash, semantic_clusters

__all__ = ["Clusters", "embeddings_hash", "load_clusters", "save_clusters", "semantic_clusters"]
