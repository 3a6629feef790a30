"""A ddlib plug-in with one class for each of its rooms, and a backbone; and a process for a recipe by one word."""

from ddlib_ragged.hierarchy import Bands
from ddlib_ragged.network import Neighbours
from ddlib_ragged.process import Ragged
from ddlib_ragged.sampler import Restart
from ddlib_ragged.schedule import LogOdds
from ddlib_ragged.text import punctuated

__all__ = ["Bands", "LogOdds", "Neighbours", "Ragged", "Restart", "punctuated"]
