"""Hierarchies: maps act as the dense matrices they stand for."""

import copy

import numpy as np
import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused_with, refuses
from zoo.calls import seeded
from zoo.processes import F64

import ddlib as dd
from ddlib.hierarchies import Flat, Hierarchy, Map, Tree, parent_map
from ddlib.hierarchies.ascent import AlongEdges, ByTable
from ddlib.plot import colors
from ddlib.testing import strategies


@st.composite
def maps(draw, children=None):
    children = children or draw(st.integers(2, 8))
    clusters = draw(st.integers(1, children - 1))
    xi = draw(st.one_of(strategies.xis, st.floats(1e-3, 0.05))) if clusters > 1 else 1.0
    return parent_map(draw(strategies.parents(children, clusters)), xi)


@given(strategies.parents(7, 3), st.floats(0.01, 1.0))
def test_perturbed_rows_are_those_of_the_theory(parents, xi):
    dense = parent_map(parents, xi).matrix()
    own = torch.as_tensor(parents)[:, None] == torch.arange(3)
    wanted = torch.where(own, torch.tensor(xi, dtype=F64), (1 - xi) / 2)
    assert (dense - wanted).abs().max() < 1e-15


@given(maps(), st.data())
def test_every_action_is_that_of_the_dense_matrix_whose_rows_sum_to_one(m, data):
    dense = m.matrix()
    assert dense.shape == (m.num_children, m.num_parents) and (dense >= 0).all()
    assert torch.allclose(dense.sum(1), torch.ones(m.num_children, dtype=torch.float64), atol=1e-15)
    probs = data.draw(strategies.token_logits(3, m.num_children)).softmax(-1)
    assert torch.allclose(m.push(probs), probs @ dense, atol=1e-15)
    assert torch.allclose(m.log_push(probs.log()), (probs @ dense).log(), atol=1e-12)
    child = torch.arange(m.num_children)
    parent = torch.arange(m.num_parents)
    assert torch.equal(m.row(child), dense) and torch.equal(m.column(parent), dense.T)
    assert torch.equal(
        m.entry(child[:, None].expand(dense.shape), parent.expand(dense.shape)), dense
    )


@given(st.integers(4, 8), st.data())
def test_products_keep_the_form(children, data):
    lower = data.draw(maps(children))
    if lower.num_parents < 2:
        return
    upper = data.draw(maps(lower.num_parents))
    product = lower.compose(upper)
    assert torch.allclose(product.matrix(), lower.matrix() @ upper.matrix(), atol=1e-14)
    assert product.spread is None or bool((product.spread > 0).all())


@given(maps(), st.integers(0, 2**31))
def test_sampled_parents_follow_the_row(m, seed):
    """Exactly, not statistically: an even grid of uniforms hits each parent as often as its
    probability.
    """
    if m.spread is None:
        return
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    for child in range(m.num_children):
        drawn = m.sample(torch.full((4000,), child), u)
        counts = torch.bincount(drawn, minlength=m.num_parents) / 4000
        assert torch.allclose(counts, m.row(torch.tensor(child)).float(), atol=3 / 4000)


def test_log_push_is_finite_where_push_underflows():
    m = parent_map([0, 0, 1])
    log_probs = torch.tensor([[-200.0, -300.0, 0.0]])
    assert torch.allclose(m.log_push(log_probs), torch.tensor([[-200.0, 0.0]]))
    log_probs = torch.tensor([[-torch.inf, -torch.inf, 0.0]], requires_grad=True)
    out = m.log_push(log_probs)
    assert out[0, 0] == -torch.inf
    out[0, 1].backward()
    assert torch.equal(log_probs.grad, torch.tensor([[0.0, 0.0, 1.0]]))


@pytest.mark.parametrize("scale", [1, 30, 60, 90, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_push_is_the_log_sum_exp_of_every_cluster_on_any_scale(dtype, scale):
    """One peak is enough for the whole row as long as no cluster is so far below it that its sum
    would lose digits.
    """
    m = parent_map([0, 2, 1, 0, 2, 2, 1])
    log_probs = (scale * torch.randn(50, 7, generator=seeded(scale), dtype=dtype)).requires_grad_()
    want = torch.stack([log_probs[:, m.parents == c].logsumexp(-1) for c in range(3)], -1)
    found = m.log_push(log_probs)
    torch.testing.assert_close(found, want)
    ours, theirs = (
        torch.autograd.grad(one.sum(), log_probs, retain_graph=True)[0] for one in (found, want)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("below", [30.0, 42.0, 45.0, 60.0, 80.0, 200.0])
def test_the_slope_of_an_unlikely_cluster_is_finite_under_the_largest_weights(below):
    """The bound multiplies by up to 1e17 near t = 1, where e^-80 is still a number of float32."""
    m = parent_map([0, 0, 1])
    log_probs = torch.tensor([[0.0, -1.0, -below]], requires_grad=True)
    (1e17 * m.log_push(log_probs)).sum().backward()
    torch.testing.assert_close(log_probs.grad, 1e17 * torch.tensor([[0.7310586, 0.2689414, 1.0]]))


@given(strategies.hierarchies())
def test_states_are_tokens_then_levels_then_the_mask(hierarchy: Hierarchy):
    assert hierarchy.num_states == sum(hierarchy.levels)
    assert hierarchy.levels[-1] == 1 and hierarchy.depth == len(hierarchy.speeds)
    level = hierarchy.level_of(torch.arange(hierarchy.num_states))
    assert torch.bincount(level).tolist() == list(hierarchy.levels)
    assert (level.diff() >= 0).all()
    for i in range(hierarchy.depth):
        dense = torch.eye(hierarchy.levels[i], dtype=torch.float64)
        for j in range(i, hierarchy.depth):
            dense = dense @ hierarchy.maps[j].matrix()
            assert torch.allclose(hierarchy.between(i, j + 1).matrix(), dense, atol=1e-13)


def test_a_tree_can_be_moved_and_keeps_its_precision():
    tree = Tree([[0, 0, 1, 1, 2], [0, 1, 1]], xi=[0.7, 0.9])
    moved = copy.deepcopy(tree).to(torch.bfloat16).half()
    assert moved.maps[0].spread.dtype == F64 and torch.equal(
        moved.maps[0].matrix(), tree.maps[0].matrix()
    )
    edge = tree.to("meta").maps[0]
    assert edge.parents.device.type == edge.spread.device.type == "meta"


def test_users_may_write_a_hierarchy():
    class Halves(Hierarchy):
        def __init__(self, size):
            half = torch.arange(size) // (size // 2)
            super().__init__(
                [parent_map(half, 0.9), Map(torch.zeros(2, dtype=torch.int64), 1)], [1.0, 2.0]
            )

    assert Halves(6).levels == (6, 2, 1)
    assert Flat(4).levels == (4, 1)
    assert Tree([torch.tensor([0, 0, 1], dtype=torch.int32)]).levels == (3, 2, 1)


VECTOR = [0, 0, 1, 1, 2]
ALONE = {
    "a list": VECTOR,
    "a tuple": tuple(VECTOR),
    "a tensor": torch.tensor(VECTOR),
    "an array": np.array(VECTOR),
    "a list of scalars": list(torch.tensor(VECTOR)),
    "in a list": [VECTOR],
    "a tensor in a list": [torch.tensor(VECTOR)],
}


@pytest.mark.parametrize(
    "make", [Tree, dd.presets.hdlm, dd.presets.hdlm_levels], ids=lambda make: make.__name__
)
@pytest.mark.parametrize("form", ALONE)
def test_one_vector_of_parents_may_stand_alone(make, form):
    made = make(ALONE[form])
    tree = made if isinstance(made, Tree) else made.hierarchy
    assert tree.levels == (5, 3, 1) and tree.maps[0].parents.tolist() == VECTOR


def test_reprs_of_hierarchies_and_processes_are_distinct():
    """Arguments that differ are shown, defaults are not."""
    tree = Tree([[0, 0, 1, 1, 2, 2], [0, 1, 1]])
    vector = [0, 0, 1, 1, 2]
    assert (
        repr(Flat(3)) == "Flat(levels=(3, 1))" and repr(Tree([0, 0, 0])) == "Tree(levels=(3, 1, 1))"
    )
    assert (
        repr(tree).startswith("Tree(levels=(6, 3, 2, 1), parents=") and repr(tree).count("=") == 2
    )
    others = [
        Tree([[0, 0, 1, 1, 2, 2], [0, 0, 1]]),
        Tree([[0, 0, 1, 1, 2, 2], [0, 1, 1]], xi=[0.9, 1.0]),
        Tree([[0, 0, 1, 1, 2, 2], [0, 1, 1]], speed=[2, 1, 1]),
        Tree([[0, 0, 1, 1, 2, 2], [0, 1, 1]], fingerprint="0123456789abcdef"),
    ]
    ends = ["xi=(0.9, 1))", "speed=(2.0, 1.0, 1.0))", "fingerprint=0123456789ab)"]
    assert all(repr(other).endswith(end) for other, end in zip(others[1:], ends, strict=True))
    matrix = torch.tensor([[-1.0, 1.0], [2.0, -2.0]])
    linear = dd.schedules.Linear()
    cosine = dd.schedules.Cosine()
    processes = [
        *(dd.processes.Hierarchical(hierarchy, linear) for hierarchy in (tree, *others)),
        dd.presets.hdlm(vector),
        dd.presets.hdlm(vector, xi=0.8),
        dd.presets.hdlm(vector, gamma=2.0),
        *(dd.processes.Uniform(3, schedule) for schedule in (linear, cosine)),
        *(
            dd.processes.RateMatrix(rates, schedule)
            for rates in (matrix, 2 * matrix)
            for schedule in (linear, cosine)
        ),
    ]
    assert len(set(map(repr, processes))) == len(processes)
    assert "xi=(0.8,)" in repr(processes[6]) and repr(Tree(VECTOR)) == repr(
        Tree([torch.tensor(VECTOR)])
    )
    assert repr(copy.deepcopy(tree).to("meta")) == "Tree(levels=(6, 3, 2, 1), parents=meta)"


WORDS50 = [i % 16 for i in range(50)]
ABOVE16 = [i % 4 for i in range(16)]


@pytest.mark.parametrize("xi", [1.0, (0.8, 1.0), (1.0, 0.8), (0.9, 0.7)])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 20])
def test_a_reduced_hierarchy_keeps_its_kind(xi, size):
    tree = Tree([WORDS50, ABOVE16], xi=xi, speed=[0.7, 1.3, 2.0])
    if xi != 1.0 and size == 1:
        with pytest.raises(ValueError, match=r"^vocab_size is 1, must be at least 2 where xi < 1"):
            tree.small_copy(size)
        return
    small = tree.small_copy(size)
    assert small.vocab_size == size and small.depth == 3 and small.speeds == tree.speeds
    assert isinstance(small, Tree)
    # as few members per cluster on every level, but two where there must be another cluster to
    # stray to
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
            assert torch.allclose(
                dense.scatter(1, edge.parents[:, None], stray), stray.expand_as(dense), atol=1e-15
            )


test_bad_arguments_are_refused = refuses(r"""
    Flat(4).small_copy(0) | ValueError | ^vocab_size is 0
    zoo.trees.XI_TREE.small_copy(0) | ValueError | ^vocab_size is 0
    zoo.processes.EVERY_KIND["masked"].small_copy(0) | ValueError | ^vocab_size is 0
    zoo.processes.EVERY_KIND["gidd"].small_copy(0) | ValueError | ^vocab_size is 0
    zoo.processes.EVERY_KIND["levels-xi"].small_copy(0) | ValueError | ^vocab_size is 0
    zoo.processes.EVERY_KIND["plain"].small_copy(2) | TypeError | has no reduction
    Tree([torch.zeros(0, dtype=torch.int64)]) | ValueError | ^parents\[0\] has shape \(0,\)
    parent_map([0, -1]) | ValueError | ^parents holds -1
    Tree([[0, 0, 1]], speed=[1.0, 0.9e-3]) | ValueError | ^speed\[1\] is .*in \[0\.001, 1000\]
    Tree([[0, 0, 1]], speed=[1.0, 1000.5]) | ValueError | ^speed\[1\] is .*in \[0\.001, 1000\]
    Map(torch.tensor([0, 2]), 2) | ValueError | ^parents holds 2, must be in \[0, 2\)
    Map(torch.tensor([[0, 1]]), 2) | ValueError | ^parents has shape \(1, 2\)
    Tree([[0, 0, 1]]).under(-1) | ValueError | ^state is -1, must be in \[0, 6\)
    Tree([[0, 0, 1]]).under(6) | ValueError | ^state is 6, must be in \[0, 6\)
""")


def test_an_uneven_map_keeps_its_proportions_when_restricted():
    spread = torch.tensor([0.05, 0.1, 0.15, 0.0], dtype=F64) + 0.01
    whole = Map(torch.tensor([0, 1, 2, 3, 0, 1]), 4, 1 - float(spread.sum()), spread)
    part = whole.restrict(torch.tensor([0, 2, 4]), torch.tensor([0, 2]))
    assert part.parents.tolist() == [0, 1, 0] and part.num_parents == 2
    assert part.keep == whole.keep
    assert torch.allclose(part.matrix().sum(1), torch.ones(3, dtype=F64))
    assert torch.allclose(part.spread / part.spread.sum(), spread[[0, 2]] / spread[[0, 2]].sum())


@pytest.mark.parametrize("clusters", [2, 3, 7])
def test_the_last_uniform_before_one_draws_a_parent_that_exists(clusters):
    last = torch.tensor([1 - 2**-53, 1 - 2**-52, 0.0], dtype=F64)
    for xi in torch.linspace(0.01, 0.999, 200).tolist():
        edge = parent_map([*range(clusters), 0], xi)
        for child in range(clusters):
            drawn = edge.sample(torch.full((3,), child), last)
            assert (drawn >= 0).all() and (drawn < clusters).all() and int(drawn[-1]) == child


def test_maps_take_any_integers_and_keep_the_precision_of_probabilities():
    for dtype in (torch.int8, torch.int32, torch.int64):
        edge = parent_map(torch.tensor([0, 0, 1], dtype=dtype), 0.8)
        assert edge.parents.dtype == torch.int64
    for dtype in (torch.float32, F64):
        p = torch.tensor([0.2, 0.3, 0.5], dtype=dtype)
        assert edge.push(p).dtype == edge.log_push(p.log()).dtype == dtype
    assert Tree([[0]]).levels == (1, 1, 1)


@pytest.mark.usefixtures("as_users_call")
def test_the_ends_of_the_ranges_are_taken():
    tree = Tree([[0, 0, 1]], speed=[1e-3, 1e3], fingerprint="abc")
    assert tree.speeds == (1e-3, 1e3) and tree.fingerprint == "abc"


def test_names_of_a_tree_are_shown_kept_and_checked():
    parents = [[0, 0, 1, 1, 2], [0, 1, 1]]
    tree = Tree(parents, names={"charge": ["+", "-", "0"], "size": ["big", "small"]})
    assert tree.names.plain() == {"charge": ["+", "-", "0"], "size": ["big", "small"]}
    assert dd.build("hierarchies", dd.values(tree)).names == tree.names
    assert dd.plot.level_names(tree) == ["token", "charge", "size", "mask"]
    assert colors.state_names(tree)[5:] == ["+", "-", "0", "big", "small", "mask"]
    flat = dd.presets.hdlm(parents[0], names=["a", "b", "c"])
    assert (
        flat.hierarchy.names == ((), (("a", "b", "c"),))
        and dd.plot.level_names(flat)[1] == "cluster"
    )
    assert Tree(parents).names.members == () and Tree(parents, names=[]).names.plain() == []
    Tree(parents).load_state_dict(tree.state_dict())  # names change no number
    refused_with(named=lambda names: Tree(parents, names=names))(r"""
        named(["a", "b", "c"]) | ValueError | names has 1 levels, must have 2
        named([["a", "b"], ["c", "d"]]) | ValueError | names\[0\] has 2 names, must have 3
        named([["a", "b", "b"], ["c", "d"]]) | ValueError
            | names\[0\] has \['b'\], which is empty or occurs twice
        named([[0, 1, 2], ["c", "d"]]) | TypeError
            | names\[0\] is \[0, 1, 2\], must be a list of strings
        named("abc") | TypeError | names is 'abc', must be lists of strings
    """)


@settings(max_examples=examples(60))
@given(strategies.hierarchies(max_depth=4), st.integers(0, 99))
def test_a_table_of_ancestors_is_the_ascent_along_plain_edges(hierarchy, seed):
    maps = [Map(edge.parents, edge.num_parents) for edge in hierarchy.maps]
    plain = dd.hierarchies.Hierarchy(maps, hierarchy.speeds)
    assert isinstance(plain.ascent, ByTable)
    assert isinstance(hierarchy.ascent, ByTable) == all(edge.plain for edge in hierarchy.maps)
    states = torch.arange(plain.num_states)
    levels = torch.arange(plain.depth + 1)[:, None].expand(-1, len(states))
    z = states.expand_as(levels)
    draws = iter(())
    ancestors = plain.ascent(z, levels, draws)
    assert torch.equal(ancestors, AlongEdges(maps, plain.starts)(z, levels, draws))
    assert torch.equal(plain.level_of(ancestors), levels.maximum(plain.level_of(z)))
    for level in range(1, plain.depth + 1):
        tokens = torch.arange(plain.vocab_size)
        parents = plain.between(0, level).parents + plain.offsets[level]
        assert torch.equal(ancestors[level, tokens], parents)
