"""Child logits: probabilities of tokens, the same bound, from the columns of a family."""

import pickle

import pytest
import torch
from cases import examples
from fused_loss_inputs import (
    F64,
    NESTED,
    agree,
    agree_on_mean,
    agree_under_autocast,
    agree_when_compiled,
    batch,
    close,
    logits_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import seeded
from zoo.processes import Plain

import ddlib as dd
from ddlib.hierarchies import Flat, Tree
from ddlib.processes import GIDD, Masked
from ddlib.schedules import Linear
from ddlib.testing import strategies

TREES = {
    "flat": Flat(8),
    "two": Tree(NESTED[:1]),
    "three": Tree(
        NESTED[:2], xi=0.7, speed=[1.0, 2.0, 3.0]
    ),  # neither has a part in the output's meaning
    "four": Tree(NESTED),
    "only-children": Tree([[0, 1, 2, 3, 4, 4, 4, 4], [0, 0, 0, 0, 1]]),
}
NOISE = {
    "masked": Masked(8, Linear()),
    "gidd": GIDD(8, 0.2),
    "gidd-0": GIDD(8, 0.0),
    "hdlm": dd.presets.hdlm(NESTED[0]),
    "hdlm-xi": dd.presets.hdlm(NESTED[0], xi=0.8),
    "levels": dd.presets.hdlm_levels(NESTED, speed=[1.0, 2.0, 0.5, 1.5]),
    "xi-above": dd.presets.hdlm_levels(NESTED, xi=[1.0, 0.8, 1.0]),
    "coarse": dd.presets.hdlm([0, 0, 1, 1, 1, 0, 0, 0]),  # none of the trees' levels
    "second": dd.presets.hdlm([0, 0, 1, 1, 1, 0, 0, 2]),  # the second level of the trees
    "plain": Plain(dd.presets.hdlm(NESTED[0])),
}
every = pytest.mark.parametrize(
    "noise, tree",
    [(n, t) for n in NOISE for t in TREES],
)


@pytest.mark.parametrize("name", TREES)
def test_token_probabilities_are_products_of_child_probabilities(name):
    tree = TREES[name]
    logits = torch.randn(TREES[name].num_states - 1, dtype=F64)
    shares = {}
    for level, edge in enumerate(tree.maps):
        for parent in range(edge.num_parents):
            family = (edge.parents == parent).nonzero()[:, 0] + tree.offsets[level]
            shares |= dict(zip(family.tolist(), logits[family].softmax(0).tolist(), strict=True))
    probs = []
    for token in range(tree.vocab_size):
        ancestors = [
            tree.offsets[i] + int(tree.between(0, i).parents[token]) for i in range(1, tree.depth)
        ]
        probs.append(torch.tensor([shares[state] for state in (token, *ancestors)]).prod())
    found = dd.token_logits(tree, logits).exp()
    assert (
        torch.allclose(found, torch.stack(probs).double(), rtol=1e-6)
        and abs(float(found.sum()) - 1) < 1e-12
    )


@every
@pytest.mark.parametrize("shuffled", [False, True])
def test_fused_child_logits_are_the_expanded_ones(noise, tree, shuffled):
    process = NOISE[noise]
    tree = TREES[tree]
    layer, noisy = batch(process, tree, extra=3 * shuffled)
    rows = torch.randperm(tree.num_states + 2, generator=torch.Generator().manual_seed(2))[
        : tree.num_states - 1
    ]
    rows = rows if shuffled else torch.arange(tree.num_states - 1)
    meaning = dd.Children(tree, rows=rows if shuffled else None)
    logits = torch.nn.functional.linear(*layer)[..., rows]
    slope = torch.randn(noisy[0].shape, dtype=F64, generator=torch.Generator().manual_seed(1))
    hidden, weight, bias = layer
    ours = dd.nelbo(
        process, dd.Hidden(hidden, weight, bias, chunk=19), *noisy, parameterization=meaning
    )
    theirs = dd.nelbo(process, logits, *noisy, parameterization=meaning)
    generic = dd.nelbo(process, dd.token_logits(tree, logits), *noisy, "generic")
    close([ours, theirs], [theirs, generic], 1e-8)
    close([ours], [theirs])
    expected = torch.autograd.grad((theirs * slope).sum(), layer, retain_graph=True)
    close(torch.autograd.grad((ours * slope).sum(), layer), expected)
    one = dd.training_loss(
        process, dd.Hidden(hidden, weight, bias), *noisy, parameterization=meaning
    )
    close(torch.autograd.grad(one, layer), torch.autograd.grad(theirs.mean(), layer))


@pytest.mark.parametrize("mode", ["standard", "hard"])
@pytest.mark.parametrize("noise", ["hdlm", "levels", "xi-above", "masked"])
@pytest.mark.parametrize("meaning", ["cavity", "posterior"])
def test_every_option_of_the_training_loss(noise, mode, meaning):
    process = NOISE[noise]
    tree = TREES["four"]
    layer, noisy = batch(process, tree)
    mask = torch.rand(noisy[0].shape, generator=torch.Generator().manual_seed(2)) < 0.6
    options = dict(
        mode=mode,
        mask=mask,
        parameterization=dd.Children(tree, meaning),
        weighting=dd.weightings.PerLevel(
            [0.5 + i for i in range(process.hierarchy.depth)], dd.weightings.Clip(2.0)
        ),
    )
    for reduction in ("mean", "none"):
        agree(process, layer, noisy, **options, reduction=reduction)


@settings(max_examples=examples(60))
@given(strategies.processes(), st.integers(0, 99), st.integers(1, 60))
def test_drawn_processes(process, seed, chunk):
    tree = process.hierarchy or Flat(process.vocab_size)
    meaning = "children" if process.hierarchy else dd.Children(tree)
    layer, noisy = batch(process, tree, seed, rows=4, length=3)
    theirs = dd.nelbo(process, logits_of(layer), *noisy, parameterization=meaning)
    ours = dd.training_loss(
        process, dd.Hidden(*layer[:2], layer[2], chunk=chunk), *noisy, parameterization=meaning
    )
    agree_on_mean(ours, theirs, layer)


@pytest.mark.parametrize("noise", ["masked", "levels", "hdlm-xi", "gidd"])
def test_under_autocast_matrix_products_are_in_bfloat16_and_the_gradients_float32(noise):
    process = NOISE[noise]
    tree = TREES["four"]
    agree_under_autocast(
        process, *batch(process, tree, rows=40), parameterization=dd.Children(tree)
    )


# dynamo itself looks at .grad of what it hands over a graph break
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_only_one_graph_break_under_compile():
    process = NOISE["levels"]
    tree = TREES["four"]
    layer, noisy = batch(process, tree)
    meaning = dd.Children(tree)

    def step(hidden, weight, bias):
        return 3 * dd.training_loss(
            process, dd.Hidden(torch.tanh(hidden), weight, bias), *noisy, parameterization=meaning
        )

    agree_when_compiled(step, layer)


def test_scale_and_the_loss_of_each_token():
    process = NOISE["masked"]
    tree = TREES["four"]
    layer, noisy = batch(process, tree)
    hidden = dd.Hidden(*layer)
    options = dict(parameterization=dd.Children(tree))
    plain, each = dd.summed_loss(process, hidden, *noisy, 1.0, **options)
    scaled, same = dd.summed_loss(process, hidden, *noisy, 0.25, **options)
    close([plain, 4 * scaled, each], [each.sum(), plain, same])
    close(torch.autograd.grad(plain, layer), [4 * g for g in torch.autograd.grad(scaled, layer)])


@pytest.mark.parametrize(
    "noise, tree", [("levels", "four"), ("masked", "three"), ("second", "three")]
)
def test_a_token_needs_the_sibling_logits_between_its_state_and_its_ancestor(noise, tree):
    process = NOISE[noise]
    tree = TREES[tree]
    layer, (x, z, t) = batch(process, tree, rows=200)
    above = [x + 0, *(tree.between(0, i).parents[x] for i in range(1, tree.depth + 1))]
    levels = dd.Children(tree).levels_of(process.hierarchy)
    for state in range(process.num_states):
        here = z == state
        if not here.any():
            continue
        loss = dd.nelbo(
            process, dd.Hidden(*layer[:2]), x, z, t, parameterization=dd.Children(tree)
        )[here].sum()
        used = torch.autograd.grad(loss, layer[1])[0].abs().sum(1) > 0
        level = int(process.level_of(torch.tensor([[state]])))
        wanted = torch.zeros(len(used), dtype=torch.bool)
        for at in range(levels[level - 1], levels[level]) if level else ():
            families = torch.isin(tree.maps[at].parents, above[at + 1][here])
            several = torch.bincount(tree.maps[at].parents)[tree.maps[at].parents] > 1
            wanted[tree.offsets[at] : tree.offsets[at] + tree.levels[at]] = families & several
        assert torch.equal(used, wanted)


class Halves:
    """A network in two halves with child logits, whose features are the state's row of a table.

    Counts its products.
    """

    def __init__(self, process, tree, rows=None):
        generator = torch.Generator().manual_seed(3)
        self.table = torch.randn(process.num_states, 6, generator=generator, dtype=F64)
        self.matrix = torch.randn(tree.num_states - 1, 6, generator=generator, dtype=F64)
        self.bias = torch.randn(tree.num_states - 1, generator=generator, dtype=F64)
        self.rows = torch.arange(tree.num_states - 1) if rows is None else rows

    def features(self, z, t):
        return self.table[z] + self.table[z.roll(1, -1)]

    def output_weights(self):
        return self.matrix, self.bias

    def siblings(self):
        order = torch.empty_like(self.rows)
        order[self.rows] = torch.arange(len(self.rows))
        return self.matrix[order], self.bias[order], self.rows

    def __call__(self, z, t):
        return torch.nn.functional.linear(self.features(z, t), *self.output_weights())


WAYS = [
    ("masked", "four"),
    ("hdlm", "two"),
    ("hdlm-xi", "four"),
    ("levels", "four"),
    ("xi-above", "four"),
    ("second", "three"),
    ("coarse", "two"),
    ("gidd", "two"),
]


def frequencies(process, denoiser, meaning, sampler, n, seed=0, **options):
    """Frequency of each pair of tokens, (V, V)."""
    x = dd.sample(
        process,
        denoiser,
        (n, 2),
        sampler,
        8,
        parameterization=meaning,
        generator=seeded(seed),
        **options,
    )
    return torch.bincount(
        x[:, 0] * process.vocab_size + x[:, 1], minlength=process.vocab_size**2
    ).double()


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.statistical
@pytest.mark.parametrize("noise, tree", WAYS)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}], ids=["as-is", "cooler"])
def test_samples_from_child_logits_follow_the_token_probabilities(noise, tree, options):
    """Descending by children and expanding to tokens first give the same distribution: two samples,
    by chi-square.
    """
    process = NOISE[noise]
    tree = TREES[tree]
    n = 4000
    halves = Halves(process, tree)
    meaning = dd.Children(tree)
    ours = frequencies(process, halves, meaning, None, n, 1, **options)
    theirs = frequencies(
        process, lambda z, t: dd.token_logits(tree, halves(z, t)), "cavity", None, n, 2, **options
    )
    some = ours + theirs > 10
    statistic = ((ours - theirs) ** 2 / (ours + theirs).clamp_min(1))[some].sum()
    freedom = int(some.sum())
    assert abs(float(statistic) - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("noise, tree", WAYS)
@pytest.mark.parametrize("force", [False, True])
def test_halves_and_the_order_of_rows_change_no_sample(noise, tree, force):
    process = NOISE[noise]
    tree = TREES[tree]
    order = torch.cat(
        [o + e.parents.argsort(stable=True) for o, e in zip(tree.offsets, tree.maps, strict=False)]
    )
    rows = order.argsort()  # siblings next to each other
    whole = Halves(process, tree)
    split = Halves(process, tree)
    shuffled = Halves(process, tree, rows)
    drawn = [
        frequencies(process, denoiser, dd.Children(tree), dd.samplers.Ancestral(force), 50)
        for denoiser in (lambda z, t: whole(z, t), split, shuffled)
    ]
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("sampler", [dd.samplers.Ancestral(), dd.samplers.Remask(1.0)])
def test_the_walks_of_other_rows_change_no_text(sampler):
    """Some rows descend one family in a step, some four, and none the third: the noise of a row is
    the same.
    """
    process = NOISE["levels"]
    tree = TREES["four"]

    def drawn(rows):
        index = torch.arange(6)[rows]
        return dd.sample(
            process,
            Halves(process, tree),
            (len(index), 3),
            sampler,
            6,
            parameterization=dd.Children(tree),
            generator=dd.KeyedGenerator(0, 0, index),
        )

    assert torch.equal(drawn(slice(0, 6)), torch.cat([drawn(slice(i, i + 1)) for i in range(6)]))


def test_a_position_that_descends_needs_its_sibling_logits_only(products):
    process = NOISE["masked"]
    tree = TREES["four"]
    dd.sample(process, Halves(process, tree), (3, 4), steps=5, parameterization=dd.Children(tree))
    assert max(columns for _, columns in products) <= 3 < tree.num_states - 1


ONE = torch.tensor([[3]]), torch.tensor([[8]]), torch.tensor([0.5])
MASKS = NOISE["masked"]
FOUR = TREES["four"]
test_bad_input = refuses(r"""
    dd.nelbo(MASKS, torch.zeros(1, 1, 8), *ONE, parameterization=dd.Children(FOUR))
        | ValueError
            | logits has 8 columns, must have 18: .*one per state but the root, and those of tokens
            have V
    dd.nelbo(MASKS, torch.zeros(1, 1, 18), *ONE) | ValueError | logits has 18 columns.*vocab_size 8
    dd.nelbo(MASKS, torch.zeros(1, 1, 8), *ONE, parameterization=dd.Children(Flat(9)))
        | ValueError | parameterization has a tree over 9 tokens, the process has vocab_size 8
    dd.nelbo(NOISE["gidd"], torch.zeros(1, 1, 8), *ONE, parameterization="children")
        | ValueError | parameterization is 'children', GIDD has no hierarchy: pass dd.Children
    dd.nelbo(MASKS, torch.zeros(1, 1, 8), *ONE, parameterization="kids")
        | ValueError
            | parameterization is 'kids', must be one of 'cavity', 'posterior', 'children' or a
            dd.Children
    dd.Children(FOUR, "joint") | ValueError | parameterization is 'joint', must be
    dd.Children(FOUR, rows=torch.zeros(18, dtype=torch.int64)) | ValueError | rows holds a row twice
    dd.Children(FOUR, rows=torch.arange(18) - 1) | ValueError
        | rows holds -1, must be indices of rows
    dd.Children(FOUR, rows=torch.arange(8)) | ValueError
        | rows has shape \(8,\), must be \(S - 1,\) = \(18,\)
    dd.nelbo(MASKS, dd.Hidden(torch.zeros(1, 1, 2), torch.zeros(8, 2)), *ONE,
        parameterization=dd.Children(FOUR))
        | ValueError
            | weight has shape \(8, 2\), must be \(S - 1, D\).* = \(18, 2\); V rows are logits of
            tokens
    dd.token_logits(FOUR, torch.zeros(8)) | ValueError | S - 1 = 18
    dd.nelbo(MASKS, torch.full((1, 1, 18), torch.nan), *ONE, parameterization=dd.Children(FOUR))
        | ValueError | logits at position \(0, 0\) hold NaN
""")


@pytest.mark.usefixtures("as_users_call")
def test_a_tree_with_a_childless_state_is_refused():
    hollow = dd.hierarchies.Hierarchy.__new__(Tree)
    maps = [
        dd.hierarchies.maps.Map(torch.tensor([0, 0, 2]), 3),
        dd.hierarchies.maps.Map(torch.zeros(3).long(), 1),
    ]
    dd.hierarchies.Hierarchy.__init__(hollow, maps)
    with pytest.raises(ValueError, match=r"tree has a state without children, 4 in level 1"):
        dd.Children(hollow)
    with pytest.raises(TypeError, match="tree is 3, must be"):
        dd.Children(3)


def test_a_used_parameterization_is_pickled():
    tree = dd.hierarchies.Tree([[0, 0, 1, 1]])
    children = dd.Children(tree)
    logits = torch.randn(2, 6)
    children.families(0), children.levels_of(tree)
    again = pickle.loads(pickle.dumps(children))
    assert torch.equal(again.token_logits(logits), children.token_logits(logits))
    assert again.levels_of(tree) == children.levels_of(tree)


@pytest.mark.parametrize("given", ["cavity", "posterior"])
def test_the_given_parameterization_is_kept_with_the_tree_of_a_network(given):
    network = Halves(NOISE["masked"], TREES["two"])
    assert dd.Children.meaning(network, given) == given  # it has no tree
    network.tree = [m.parents.tolist() for m in TREES["two"].maps[:-1]]
    found = dd.Children.meaning(network, given)
    assert found.parameterization == given and found.tree.levels == TREES["two"].levels
