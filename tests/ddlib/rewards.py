"""A text of two words, a tree of three, and rewards, for the tests of particles."""

import torch

import ddlib as dd

F64 = torch.float64
PAIR = torch.tensor([[0.30, 0.02, 0.05], [0.03, 0.05, 0.20], [0.25, 0.04, 0.06]], dtype=F64)
TREE = dd.presets.hdlm_levels([[0, 1, 1]])  # word 0 alone in its cluster, state 3; words 1 and 2 in state 4; mask 5


def alike(z, t):
    """A reward of words: are both the same? Of noise it says nothing."""
    return ((z[:, 0] == z[:, 1]) & (z < 3).all(-1)).double()


def clusters(z, t):
    """A reward of states: how many are in the second cluster, as it or as a word of it."""
    return torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], dtype=F64)[z].sum(-1)


def ramp(z, t):
    """Any reward that goes by every state, and by the time."""
    return (z.double() * torch.arange(1, z.shape[1] + 1)).cos().sum(-1) * (1 - t / 3)
