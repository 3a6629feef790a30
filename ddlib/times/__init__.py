"""Time densities: distributions of the times t at which a batch is noised, and sampling from them
(TIMES).
"""

from ddlib.times.base import TimeDensity, Uniform
from ddlib.times.beta import Beta
from ddlib.times.draws import sample_times
from ddlib.times.logit_normal import Bell
from ddlib.times.tabulated import Tabulated

__all__ = ["Bell", "Beta", "Tabulated", "TimeDensity", "Uniform", "sample_times"]
