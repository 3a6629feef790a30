"""A ddlib plug-in with one class for each of its rooms."""

from ddlib_ragged.hierarchy import Bands
from ddlib_ragged.process import Ragged
from ddlib_ragged.sampler import Restart
from ddlib_ragged.schedule import LogOdds

__all__ = ["Bands", "LogOdds", "Ragged", "Restart"]
