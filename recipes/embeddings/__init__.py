"""What is known of the words before training: their embeddings, their clusters, the start of a network."""
