"""Paces: paths of per-position times from data to noise (WHICH position when)."""

from ddlib.paces.base import Draw, Pace, Together
from ddlib.paces.blocks import Blocks, LeftToRight
from ddlib.paces.checkerboard import Checkerboard
from ddlib.paces.halton import Halton
from ddlib.paces.lanes import Lanes
from ddlib.paces.patches import Patches
from ddlib.paces.ramp import Ramp
from ddlib.paces.random_order import RandomOrder

__all__ = [
    "Blocks",
    "Checkerboard",
    "Draw",
    "Halton",
    "Lanes",
    "LeftToRight",
    "Pace",
    "Patches",
    "Ramp",
    "RandomOrder",
    "Together",
]
