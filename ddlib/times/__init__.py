"""Time densities: distributions of the times t at which a batch is noised, and sampling from them
(TIMES).
"""

from ddlib.times.base import TimeDensity, Uniform
from ddlib.times.densities import Bell, Beta, Tabulated

__all__ = ["Bell", "Beta", "Tabulated", "TimeDensity", "Uniform"]
