"""Processes of every kind, a user's own among them, for tests of what holds for all of them."""

import sys

import pytest
import torch
from refusals import NAMES

import ddlib as dd
from ddlib.processes import GIDD, ForwardProcess, Hierarchical, Masked, RateMatrix, Uniform
from ddlib.schedules import Cosine, Geometric, Linear, Polynomial

F64 = torch.float64
TREE = dd.hierarchies.Tree([[0, 0, 1, 1, 2, 3], [0, 1, 1, 0]], xi=[0.8, 0.6], speed=[0.7, 1.3, 2.0])
RING = torch.eye(4).roll(1, 0) + 0.5 * torch.eye(4).roll(-1, 0) - 1.5 * torch.eye(4)


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


PROCESSES = {
    "masked": Masked(5, Linear()),
    "geometric": Masked(4, Geometric()),
    "uniform": Uniform(5, Cosine()),
    "gidd": GIDD(5, 0.2),
    "gidd-0": GIDD(5, 0.0),
    "gidd-2": GIDD(4, 0.5, gamma=1.7),
    "levels": Hierarchical(dd.hierarchies.Tree([[0, 0, 1, 1, 2, 3], [0, 1, 1, 0]]), Cosine()),
    "levels-xi": Hierarchical(TREE, Polynomial(1.5)),
    "ring": RateMatrix(RING, Linear(), 3),
    "plain": Plain(GIDD(4, 0.3)),
    "plain-xi": Plain(Hierarchical(TREE, Linear())),
}
every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


def words(process):
    return torch.arange(process.vocab_size)[None]


def random_probs(process, rows, seed=0):
    noise = torch.randn(
        1, rows, process.vocab_size, generator=torch.Generator().manual_seed(seed), dtype=F64
    )
    return noise.softmax(-1)


NAMES["example_processes"] = sys.modules[__name__]
