"""Tables of a hierarchy: computed once, for as long as it lives."""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import torch

import ddlib as dd
from ddlib.hierarchies.tables import once
from ddlib.kernels.subset_logsumexp import tokens_under


class Sizes:
    """Number of members of a level, and how often it was computed."""

    def __init__(self):
        self.calls = 0
        self.of = once(self._compute)

    def _compute(self, hierarchy, level):
        self.calls += 1
        return torch.tensor(hierarchy.levels[level])


def tree():
    return dd.hierarchies.Tree([[0, 0, 1, 1]])


def test_a_table_is_computed_once_for_a_hierarchy_its_device_and_the_arguments():
    sizes = Sizes()
    first = tree()
    assert sizes.of(first, 0) is sizes.of(first, 0)
    assert sizes.calls == 1
    assert int(sizes.of(first, 1)) == 2
    assert sizes.calls == 2
    sizes.of(copy.deepcopy(first), 1)
    assert sizes.calls == 3
    sizes.of(first.to("meta"), 1)
    assert sizes.calls == 4


def test_a_table_goes_with_its_hierarchy():
    first = tree()
    tokens = weakref.ref(tokens_under(first, 1))
    assert tokens() is not None
    del first
    gc.collect()
    assert tokens() is None


def test_threads_share_a_table():
    first = tree()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: tokens_under(first, 1), range(16)))
    assert all(torch.equal(one.order, found[0].order) for one in found)
    assert tokens_under(first, 1) is tokens_under(first, 1)


def test_a_loss_computes_no_order_of_the_tokens_again(monkeypatch):
    process = dd.presets.hdlm([0, 0, 1, 1, 2])
    hidden = torch.randn(2, 3, 4, requires_grad=True)
    weight = torch.randn(5, 4, requires_grad=True)
    x = torch.tensor([[0, 1, 2], [3, 4, 0]])
    z = torch.tensor([[8, 5, 6], [8, 8, 0]])
    t = torch.tensor([0.3, 0.6])

    def loss():
        return dd.training_loss(process, dd.Hidden(hidden, weight), x, z, t)

    first = loss()
    monkeypatch.setattr("ddlib.kernels.subset_logsumexp.Grouping", None)
    assert torch.equal(loss(), first)
