"""Token statistics before training: embeddings, clusters, the initialisation of a network."""
