"""Probabilities of recorded samples, and losses of rewards and preferences."""

from ddlib.rewards.files import load_trajectory, save_trajectory
from ddlib.rewards.log_prob import log_prob, path_kl
from ddlib.rewards.losses import (
    LARGEST_REWARD,
    bound_log_ratio,
    preference_loss,
    reward_loss,
)

__all__ = [
    "LARGEST_REWARD",
    "bound_log_ratio",
    "load_trajectory",
    "log_prob",
    "path_kl",
    "preference_loss",
    "reward_loss",
    "save_trajectory",
]
