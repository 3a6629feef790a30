"""Rules that choose the lengths of sequences while they are drawn."""

from ddlib.samplers.controls import Canvas, Length

__all__ = ["Canvas", "Length"]
