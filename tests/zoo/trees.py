"""Trees of clusters."""

from ddlib.hierarchies import Tree

PARENTS = [0, 0, 1, 1, 2, 3]
"""Clusters of six tokens."""
ABOVE = [0, 1, 1, 0]
"""Clusters of these clusters."""
XI_TREE = Tree([PARENTS, ABOVE], xi=[0.8, 0.6], speed=[0.7, 1.3, 2.0])
ELEVEN = [0, 0, 1, 1, 2, 2, 2, 0, 1, 2, 0]
"""Three clusters of the 11 tokens of ``tests/models/tiny.py``."""
ELEVEN_IN_TWO = [[0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 0]]
"""Two clusters of them; the mask is state 13."""
