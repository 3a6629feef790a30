"""Files of a network: weights, configuration, manifest."""
