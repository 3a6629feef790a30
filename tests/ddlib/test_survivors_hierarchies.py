"""What mutation testing found untested in hierarchies; see tests/mutation/survivors.md."""

import pytest
import torch
from zoo import F64, PROCESSES, TREE

import ddlib as dd

WORDS50, ABOVE16 = [i % 16 for i in range(50)], [i % 4 for i in range(16)]


@pytest.mark.parametrize("xi", [1.0, (0.8, 1.0), (1.0, 0.8), (0.9, 0.7)])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 20])
def test_a_reduced_hierarchy_keeps_its_kind(xi, size):
    tree = dd.hierarchies.Tree([WORDS50, ABOVE16], xi=xi, speed=[0.7, 1.3, 2.0])
    if xi != 1.0 and size == 1:
        with pytest.raises(ValueError, match=r"^vocab_size is 1, must be at least 2 where xi < 1"):
            tree.small_copy(size)
        return
    small = tree.small_copy(size)
    assert small.vocab_size == size and small.depth == 3 and small.speeds == tree.speeds
    assert isinstance(small, dd.hierarchies.Tree)
    # as few members per cluster on every level, but two where there must be another cluster to stray to
    for i in (1, 2):
        least = 2 if tree.maps[i - 1].spread is not None else 1
        assert small.levels[i] == max(least, small.levels[i + 1], round(size ** (1 - i / 3)))
    for edge, old in zip(small.maps, tree.maps, strict=True):
        counts = torch.bincount(edge.parents, minlength=edge.num_parents)
        assert (counts >= 1).all() and int(counts.max() - counts.min()) <= 1
        dense = edge.matrix()
        own = dense.gather(1, edge.parents[:, None])
        assert torch.allclose(own, old.matrix()[0, old.parents[0]].expand_as(own), rtol=1e-12)
        assert torch.allclose(dense.sum(1), torch.ones(len(dense), dtype=F64))
        if edge.num_parents > 1:
            stray = (1 - own) / (edge.num_parents - 1)
            assert torch.allclose(dense.scatter(1, edge.parents[:, None], stray), stray.expand_as(dense), atol=1e-15)


@pytest.mark.usefixtures("as_users_call")
def test_a_reduction_to_nothing_is_refused_by_name():
    for small in (dd.hierarchies.Flat(4), TREE, PROCESSES["masked"], PROCESSES["gidd"], PROCESSES["levels-xi"]):
        with pytest.raises(ValueError, match=r"^vocab_size is 0"):
            small.small_copy(0)
    with pytest.raises(TypeError, match=r"offers no reduction"):
        PROCESSES["plain"].small_copy(2)


def test_an_uneven_map_keeps_its_proportions_when_restricted():
    spread = torch.tensor([0.05, 0.1, 0.15, 0.0], dtype=F64) + 0.01
    whole = dd.hierarchies.Map(torch.tensor([0, 1, 2, 3, 0, 1]), 4, 1 - float(spread.sum()), spread)
    part = whole.restricted(torch.tensor([0, 2, 4]), torch.tensor([0, 2]))
    assert part.parents.tolist() == [0, 1, 0] and part.num_parents == 2
    assert part.keep == whole.keep
    assert torch.allclose(part.matrix().sum(1), torch.ones(3, dtype=F64))
    assert torch.allclose(part.spread / part.spread.sum(), spread[[0, 2]] / spread[[0, 2]].sum())


@pytest.mark.parametrize("clusters", [2, 3, 7])
def test_the_last_uniform_before_one_draws_a_parent_that_exists(clusters):
    last = torch.tensor([1 - 2**-53, 1 - 2**-52, 0.0], dtype=F64)
    for xi in torch.linspace(0.01, 0.999, 200).tolist():
        edge = dd.hierarchies.parent_map([*range(clusters), 0], xi)
        for child in range(clusters):
            drawn = edge.sample(torch.full((3,), child), last)
            assert (drawn >= 0).all() and (drawn < clusters).all() and int(drawn[-1]) == child


def test_maps_take_any_integers_and_keep_the_precision_of_laws():
    for dtype in (torch.int8, torch.int32, torch.int64):
        edge = dd.hierarchies.parent_map(torch.tensor([0, 0, 1], dtype=dtype), 0.8)
        assert edge.parents.dtype == torch.int64
    for dtype in (torch.float32, F64):
        p = torch.tensor([0.2, 0.3, 0.5], dtype=dtype)
        assert edge.push(p).dtype == edge.log_push(p.log()).dtype == dtype
    assert dd.hierarchies.Tree([[0]]).levels == (1, 1, 1)
    with pytest.raises(ValueError, match=r"^parents\[0\] has shape \(0,\)"):
        dd.hierarchies.Tree([torch.zeros(0, dtype=torch.int64)])
    with pytest.raises(ValueError, match=r"^parents holds -1"):
        dd.hierarchies.parent_map([0, -1])


@pytest.mark.usefixtures("as_users_call")
def test_hierarchies_hold_to_their_stated_ranges():
    tree = dd.hierarchies.Tree([[0, 0, 1]], speed=[1e-3, 1e3], fingerprint="abc")
    assert tree.speeds == (1e-3, 1e3) and tree.fingerprint == "abc"
    for speed in (0.9e-3, 1000.5):
        with pytest.raises(ValueError, match=r"^speed\[1\] is .*in \[0\.001, 1000\]"):
            dd.hierarchies.Tree([[0, 0, 1]], speed=[1.0, speed])
    with pytest.raises(ValueError, match=r"^parents holds 2, must be in \[0, 2\)"):
        dd.hierarchies.Map(torch.tensor([0, 2]), 2)
    with pytest.raises(ValueError, match=r"^parents has shape \(1, 2\)"):
        dd.hierarchies.Map(torch.tensor([[0, 1]]), 2)
