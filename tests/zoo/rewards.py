"""Rewards of sequences."""

import torch

F64 = torch.float64


def alike(z, t):
    """A reward of finished sequences: 1 if both tokens are the same."""
    return ((z[:, 0] == z[:, 1]) & (z < 3).all(-1)).double()


def clusters(z, t):
    """A reward of states: how many are in the second cluster, as it or as a token of it."""
    return torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], dtype=F64)[z].sum(-1)


def ramp(z, t):
    """Any reward that depends on every state, and on the time."""
    return (z.double() * torch.arange(1, z.shape[1] + 1)).cos().sum(-1) * (1 - t / 3)
