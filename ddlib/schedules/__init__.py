"""WHEN: clocks that say when a token jumps."""

from ddlib.schedules.base import Schedule
from ddlib.schedules.cosine import Cosine
from ddlib.schedules.geometric import Geometric
from ddlib.schedules.linear import Linear
from ddlib.schedules.polynomial import Polynomial
from ddlib.schedules.symbolic import Symbolic

__all__ = ["Cosine", "Geometric", "Linear", "Polynomial", "Schedule", "Symbolic"]
