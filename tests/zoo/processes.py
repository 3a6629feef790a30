"""Processes by name, a user's own among them."""

import pytest
import torch

import ddlib as dd
from ddlib.hierarchies import Tree
from ddlib.processes import GIDD, ForwardProcess, Hierarchical, Masked, RateMatrix, Uniform
from ddlib.schedules import Cosine, Geometric, Linear, Polynomial
from zoo.trees import ABOVE, PARENTS, XI_TREE

F64 = torch.float64
V = 6
RING = torch.eye(4).roll(1, 0) + 0.5 * torch.eye(4).roll(-1, 0) - 1.5 * torch.eye(4)
"""Rates along a ring of four states."""
LEVELS = {
    "masked": Masked(V, Cosine()),
    "hdlm": dd.presets.hdlm(PARENTS, gamma=2.0),
    "hdlm-xi": dd.presets.hdlm(PARENTS, xi=0.5),
    "levels": dd.presets.hdlm_levels([PARENTS, ABOVE]),
    "levels-xi": dd.presets.hdlm_levels([PARENTS, ABOVE], xi=[0.5, 0.6]),
    "levels-xi-below": dd.presets.hdlm_levels([PARENTS, ABOVE], xi=[0.5, 1.0]),
    "levels-xi-above": dd.presets.hdlm_levels([PARENTS, ABOVE], xi=[1.0, 0.6]),
    "geometric": Hierarchical(Tree([PARENTS, ABOVE], xi=[1.0, 0.6]), Geometric(0.2, 30.0)),
}
"""Processes with levels over six tokens."""
SIX_TOKENS = LEVELS | {"gidd": GIDD(V, 0.3), "uniform": Uniform(V, Linear())}
THREE_TOKENS = {
    "masks": dd.presets.mdlm(3),
    "two levels": dd.presets.hdlm([0, 0, 1], gamma=1.5, xi=0.8),
    "uniform": Uniform(3, Cosine()),
    "GIDD": dd.presets.gidd(3, 0.3),
    "noisy": dd.processes.Noisy(dd.hierarchies.Flat(3), dd.schedules.Linear(), 0.2),
}
IN_PLACE = {
    "gidd": GIDD(3, 0.3),
    "uniform": Uniform(3, Cosine()),
    "clusters": dd.presets.hdlm_levels([[0, 1, 1]], xi=0.7, speed=[1.0, 2.0]),
}
"""Processes in which there are states to correct in place."""
FOUR_TOKENS = {
    "masked": Masked(4, Cosine()),
    "hdlm": dd.presets.hdlm([0, 1, 1, 2], gamma=2.0),
    "hdlm-xi": dd.presets.hdlm([0, 1, 1, 2], xi=0.7),
    "levels-xi": dd.presets.hdlm_levels(
        [[0, 1, 1, 2], [0, 0, 1]], xi=[0.7, 0.8], speed=[1.0, 2.0, 0.7]
    ),
}
FOUR_OF_EVERY_KIND = FOUR_TOKENS | {
    "gidd": GIDD(4, 0.4),
    "uniform": Uniform(4, Linear()),
    "rates": RateMatrix(torch.full((4, 4), 0.5) + torch.eye(4) * -2.0, Linear()),
    "geometric": Masked(4, Geometric(0.05, 4.0)),
    "geometric-uniform": Uniform(4, Geometric(0.05, 4.0)),
}
ONLY_CHILD = dd.presets.hdlm_levels([[0, 1, 1]])
"""Token 0 is alone in its cluster, state 3; tokens 1 and 2 are in state 4; the mask is 5."""


def presets(parents):
    """Return processes with default schedules over the tokens of a map to clusters."""
    size = len(parents)
    return {
        "masked": dd.presets.mdlm(size),
        "gidd": dd.presets.gidd(size, 0.3),
        "uniform": Uniform(size, Linear()),
        "hdlm": dd.presets.hdlm(parents),
        "hdlm-xi": dd.presets.hdlm(parents, xi=0.8),
    }


class Plain(ForwardProcess):
    """A user's process: only the contract, everything else from the base class."""

    def __init__(self, inner):
        super().__init__(inner.vocab_size, inner.num_states)
        self.inner = inner

    def marginal(self, x, t):
        return self.inner.marginal(x, t)

    def rate_matrix(self, t):
        return self.inner.rate_matrix(t)

    def transition(self, s, t):
        return self.inner.transition(s, t)


EVERY_KIND = {
    "masked": Masked(5, Linear()),
    "geometric": Masked(4, Geometric()),
    "uniform": Uniform(5, Cosine()),
    "gidd": GIDD(5, 0.2),
    "gidd-0": GIDD(5, 0.0),
    "gidd-2": GIDD(4, 0.5, gamma=1.7),
    "levels": Hierarchical(Tree([PARENTS, ABOVE]), Cosine()),
    "levels-xi": Hierarchical(XI_TREE, Polynomial(1.5)),
    "ring": RateMatrix(RING, Linear(), 3),
    "plain": Plain(GIDD(4, 0.3)),
    "plain-xi": Plain(Hierarchical(XI_TREE, Linear())),
}
"""Processes of every kind, over 3 to 6 tokens."""
every_process = pytest.mark.parametrize("process", EVERY_KIND.values(), ids=EVERY_KIND)


def all_tokens(process):
    """Return a sequence of all tokens, (1, V)."""
    return torch.arange(process.vocab_size)[None]


def random_probs(process, rows, seed=0):
    noise = torch.randn(
        1, rows, process.vocab_size, generator=torch.Generator().manual_seed(seed), dtype=F64
    )
    return noise.softmax(-1)
