"""A ddlib plug-in with one class for each of its rooms, and a backbone."""

from ddlib_ragged.hierarchy import Bands
from ddlib_ragged.network import Neighbours
from ddlib_ragged.process import Ragged
from ddlib_ragged.sampler import Restart
from ddlib_ragged.schedule import LogOdds

__all__ = ["Bands", "LogOdds", "Neighbours", "Ragged", "Restart"]
