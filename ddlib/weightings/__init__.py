"""Weightings: training weights in place of the bound's weights (WEIGH); bounds do not use them."""

from ddlib.weightings.base import Weighting, is_bound, loss_weights
from ddlib.weightings.transformations import Clip, Constant, Dynamic, Optimal, PerLevel

__all__ = [
    "Clip",
    "Constant",
    "Dynamic",
    "Optimal",
    "PerLevel",
    "Weighting",
    "is_bound",
    "loss_weights",
]
