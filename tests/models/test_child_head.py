"""The head over children: rows, tying, starting, saving, and when it is a token head after all."""

import copy

import pytest
import torch
from refusals import refused_with, refuses
from saving import same
from tiny import STATES, WORDS, build, inputs, trained

import ddlib as dd
from ddlib.typing import ChildDenoiser
from ddlib_models import ChildHead, DiT, ManifestError

TREE = [[0, 0, 1, 3, 1, 2, 1, 3, 1, 2, 4], [0, 1, 1, 0, 2]]  # 11 words, 5 clusters, 3 above them
COUNT = WORDS + 5 + 3


def meaning(model):
    return dd.Children.of(model)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("pad_to", [1, 32])
def test_logits_are_in_the_order_of_the_states_wherever_the_rows_lie(tied, pad_to):
    model = trained(tree=TREE, tied=tied, pad_to=pad_to)
    (z, t) = inputs()
    weight, bias, rows = model.siblings()
    assert model(z, t).shape == (3, 5, COUNT) and weight.shape == bias[:, None].expand(-1, 16).shape
    features = model.features(z, t)
    torch.testing.assert_close((features @ weight.T + bias)[..., rows], model(z, t))
    matrix, offset = model.output_weights()
    torch.testing.assert_close(features @ matrix.T + offset, model(z, t))
    assert isinstance(model, ChildDenoiser) and [level.tolist() for level in model.tree] == TREE


@pytest.mark.parametrize("tree", [None, TREE], ids=["words", "children"])
def test_the_output_layer_has_the_layout_of_its_meaning(tree):
    """By the rows where the meaning has rows, and otherwise in the order of the logits."""
    model = trained(tree=tree)
    (z, t) = inputs()
    meanings = (
        ["cavity"]
        if tree is None
        else [meaning(model), dd.Children(meaning(model).tree), "children"]
    )
    for one in meanings:
        weight, bias = dd.Hidden.layer(model, one)
        logits = model.features(z, t) @ weight.T + bias
        rows = getattr(one, "rows", None)
        torch.testing.assert_close(logits if rows is None else logits[..., rows], model(z, t))
    assert tree is None or dd.Hidden.layer(model, meanings[0])[0] is model.head.weight, "no copy"


def test_siblings_lie_next_to_each_other():
    rows = ChildHead(4, WORDS, TREE).rows
    for start, level in zip((0, WORDS, WORDS + 5), [*TREE, [0, 0, 0]], strict=True):
        for parent in set(level):
            family = sorted(rows[start + i].item() for i, p in enumerate(level) if p == parent)
            assert family == list(range(family[0], family[0] + len(family)))
    assert sorted(rows.tolist()) == list(range(COUNT))


def test_a_tied_token_reads_and_writes_one_row_and_clusters_have_their_own():
    model = trained(tree=TREE, tied=True)
    for one in (model, copy.deepcopy(model), model.double()):
        assert one.head.weight is one.embedding.weight
        weight, _, rows = one.siblings()
        assert torch.equal(weight[rows[:WORDS]], one.embedding.weight[:WORDS])
        assert rows[WORDS:].min() >= STATES  # no state that is read
    plain = trained(tied=True)
    assert model.embedding.weight.shape[0] - plain.embedding.weight.shape[0] == 8


@pytest.mark.parametrize("tied", [False, True])
def test_a_start_from_text_gives_its_token_frequencies_at_every_state(tied):
    model = build(tree=TREE, tied=tied)
    (z, t) = inputs()
    probs = torch.rand(WORDS, generator=torch.Generator().manual_seed(2)).log_softmax(0)
    model.start_at(probs, torch.zeros(STATES, 16))
    found = dd.token_logits(meaning(model).tree, model(z, t))
    torch.testing.assert_close(found, probs.expand(found.shape), atol=1e-5, rtol=1e-5)


def test_a_fresh_head_gives_siblings_equal_shares():
    model = build(tree=TREE)
    (z, t) = inputs()
    assert (model(z, t) == 0).all()
    word_10 = dd.token_logits(meaning(model).tree, model(z, t))[
        0, 0, 10
    ].exp()  # alone in its cluster, that in its own
    assert word_10.item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("tied", [False, True])
def test_it_is_saved_and_loaded_with_its_tree(tied, tmp_path):
    model = trained(tree=TREE, tied=tied)
    (z, t) = inputs()
    model.save_pretrained(tmp_path / "model")
    other = DiT.from_pretrained(tmp_path / "model")
    assert same(model, other) and [level.tolist() for level in other.tree] == TREE
    assert torch.equal(other(z, t), model.eval()(z, t))
    content = bytearray((tmp_path / "model" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "model" / "model.safetensors").write_bytes(content)
    with pytest.raises(ManifestError, match=r"model\.safetensors"):
        DiT.from_pretrained(tmp_path / "model")


def test_another_tree_is_refused_by_the_digits_of_both():
    process = dd.presets.mdlm(WORDS)
    model = DiT(process.num_states, WORDS, 16, 1, 2, tree=TREE)
    other = dd.Children(dd.hierarchies.Tree([[0, 1, 1, 3, 1, 2, 1, 3, 1, 2, 4], TREE[1]]))
    refused_with(model=model, other=other, process=process)(r"""
        dd.sample(process, model, (1, 3), parameterization=other)
            | ValueError
                | made for a tree with \[11, 5\] children by level and parents=\w{6}, .*
                parents=\w{6}$
        dd.Children.of(build()) | ValueError | DiT has no tree: it predicts tokens
        build().siblings() | ValueError | tree=None: the model predicts tokens
    """)


test_a_tree_that_is_none_is_refused = refuses(r"""
    build(tree=[[0, 0, 1]]) | ValueError | tree\[0\]: must be 11 int64 indices
    build(tree=[TREE[0], [0, 1]]) | ValueError | tree\[1\]: must be 5 int64 indices
    build(tree=[[0] * 10 + [2]]) | ValueError | tree\[0\]: cluster 1 has no token
""")


ONLY = {
    "no clusters": [],
    "almost only children": [[*range(10), 9]],
    "one cluster": [[0] * 11],
    "one cluster of clusters": [TREE[0], [0] * 5],
}


@pytest.mark.parametrize("tree", ONLY.values(), ids=ONLY)
@pytest.mark.parametrize("pad_to", [1, 8])
def test_with_one_normalisation_the_head_equals_a_token_head(tree, pad_to):
    torch.manual_seed(0)
    head = ChildHead(4, WORDS, tree)
    x = torch.randn(2, 3, 4)
    torch.nn.init.normal_(head.weight)
    torch.nn.init.normal_(head.bias)
    if tree and len(set(tree[0])) > 1:  # words of a cluster differ by their biases alone
        with torch.no_grad():
            head.weight[head.rows[:WORDS]] = torch.randn(10, 4)[torch.tensor(tree[0])]
    probs = dd.token_logits(dd.Children.of(_Model(head)).tree, head(x))
    tokens = head.to_token_head(pad_to)
    torch.testing.assert_close(tokens(x).log_softmax(-1), probs, atol=1e-5, rtol=1e-5)
    assert len(tokens.weight) % pad_to == 0


def test_clusters_with_different_rows_are_refused():
    head = ChildHead(4, WORDS, TREE)
    torch.nn.init.normal_(head.weight)
    with pytest.raises(
        ValueError, match=r"6 of 8 clusters have children with different rows"
    ):  # two have only one
        head.to_token_head()


class _Model:
    """A head as a network that predicts children."""

    def __init__(self, head):
        self.tree = head.tree
        self.siblings = head.siblings
        self.output_weights = head.output_weights

    def features(self, z, t):
        return z

    def __call__(self, z, t):
        return z
