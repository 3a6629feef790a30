"""Graphs of at most a few dozen nodes, as the number of nodes, the nodes and the pairs."""
