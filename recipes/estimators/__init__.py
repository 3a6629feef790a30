"""Estimators of -log p(x) in use, and Kraft's test of likelihoods and bounds."""

from recipes.estimators.base import Estimator, Model, SequenceEstimate
from recipes.estimators.kraft import (
    TOLERANCE,
    kraft_sum,
    kraft_sums,
    random_networks,
    small_model,
    verdict,
)
from recipes.estimators.needs import reason_against
from recipes.estimators.noise import OverNoise
from recipes.estimators.orders import AlongOrders
from recipes.estimators.zoo import ESTIMATORS, FIXED, find

__all__ = [
    "ESTIMATORS",
    "FIXED",
    "TOLERANCE",
    "AlongOrders",
    "Estimator",
    "Model",
    "OverNoise",
    "SequenceEstimate",
    "find",
    "kraft_sum",
    "kraft_sums",
    "random_networks",
    "reason_against",
    "small_model",
    "verdict",
]
