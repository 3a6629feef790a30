"""Rules that choose the lengths of sequences while they are drawn."""

from ddlib.samplers.lengths.base import Canvas, Length
from ddlib.samplers.lengths.daedal import Daedal
from ddlib.samplers.lengths.rho_eos import RhoEOS

__all__ = ["Canvas", "Daedal", "Length", "RhoEOS"]
