"""Plug-in package of ddlib: a process, the classes that it needs, a backbone, a data source and a
preset.
"""

from ddlib_ragged.hierarchy import Bands
from ddlib_ragged.length import Margin
from ddlib_ragged.network import Neighbours
from ddlib_ragged.process import Ragged
from ddlib_ragged.sampler import Restart
from ddlib_ragged.schedule import LogOdds
from ddlib_ragged.source import Walks
from ddlib_ragged.text import punctuated

__all__ = ["Bands", "LogOdds", "Margin", "Neighbours", "Ragged", "Restart", "Walks", "punctuated"]
