"""WHERE: hierarchies that say to which state a token jumps."""

from ddlib.hierarchies.base import Hierarchy
from ddlib.hierarchies.flat import Flat
from ddlib.hierarchies.maps import Map, parent_map
from ddlib.hierarchies.tree import Tree

__all__ = ["Flat", "Hierarchy", "Map", "Tree", "parent_map"]
