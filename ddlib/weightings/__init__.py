"""Weightings: training weights in place of the bound's weights (WEIGH); bounds do not use them."""

from ddlib.weightings.base import Weighting, weighted
from ddlib.weightings.clip import Clip
from ddlib.weightings.constant import Constant
from ddlib.weightings.dynamic import Dynamic
from ddlib.weightings.optimal import Optimal
from ddlib.weightings.per_level import PerLevel

__all__ = ["Clip", "Constant", "Dynamic", "Optimal", "PerLevel", "Weighting", "weighted"]
