"""Paces: paths of per-position times from data to noise (WHICH position when)."""

from ddlib.paces.base import Draw, Pace, Together
from ddlib.paces.blocks import Blocks, LeftToRight
from ddlib.paces.fields_in_turn import FieldsInTurn
from ddlib.paces.patches import Patches
from ddlib.paces.ramp import Ramp
from ddlib.paces.random_order import RandomOrder

__all__ = [
    "Blocks",
    "Draw",
    "FieldsInTurn",
    "LeftToRight",
    "Pace",
    "Patches",
    "Ramp",
    "RandomOrder",
    "Together",
]
