"""The network of a sampling run: the model, its output layer, and its context."""
