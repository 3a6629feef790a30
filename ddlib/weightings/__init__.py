"""Weightings: training weights in place of the bound's weights (WEIGH); bounds do not use them."""

from ddlib.weightings.base import Weighting, loss_weights
from ddlib.weightings.transformations import Clip, Constant, Dynamic, Optimal, PerLevel

__all__ = ["Clip", "Constant", "Dynamic", "Optimal", "PerLevel", "Weighting", "loss_weights"]
