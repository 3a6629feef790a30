"""Heads and embeddings: padding, tying, clusters."""

import copy

import pytest
import torch
from refusals import refuses
from tiny import STATES, WORDS, build, count, inputs, trained
from zoo.trees import ELEVEN_IN_TWO


def table(model) -> torch.Tensor:
    """Hidden vector of every state, (S, D)."""
    return model.embedding(torch.arange(STATES)[None])[0]


@pytest.mark.parametrize("tied", [True, False])
def test_padding_changes_neither_logits_nor_gradients(tied):
    z, t = inputs()
    plain = trained(tied=tied)
    padded = trained(tied=tied, pad_to=128)
    assert padded.embedding.weight.shape == padded.head.weight.shape == (128, 16)
    with torch.no_grad():
        for ours, theirs in zip(padded.parameters(), plain.parameters(), strict=True):
            ours[: len(theirs)] = theirs
    gradients = []
    for model in (plain, padded):
        logits = model(z, t)
        assert logits.shape == (3, 5, WORDS)
        logits.log_softmax(-1)[..., 0].sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(padded(z, t), plain(z, t))
    for padded_grad, plain_grad in zip(*reversed(gradients), strict=True):
        torch.testing.assert_close(padded_grad[: len(plain_grad)], plain_grad, atol=1e-5, rtol=1e-4)
        assert (padded_grad[len(plain_grad) :] == 0).all()


def test_losses_that_fuse_the_head_read_the_tokens_alone():
    model = trained(pad_to=32)
    (z, t) = inputs()
    weight, bias = model.head.output_weights()
    assert weight.shape == (WORDS, 16) and bias.shape == (WORDS,)
    torch.testing.assert_close(model.features(z, t) @ weight.T + bias, model(z, t))


def test_a_tied_head_is_the_table_and_stays_it():
    model = trained(tied=True)
    for one in (model, copy.deepcopy(model), model.double()):
        assert one.head.weight is one.embedding.weight
    untied = build()
    fewer = count(untied) - count(model)
    assert fewer == WORDS * 16 - (STATES - WORDS)
    weight, _ = model.head.output_weights()
    assert torch.equal(weight, model.embedding.weight[:WORDS])


def test_a_tied_model_is_restored_from_its_state():
    model = trained(tied=True, parents=ELEVEN_IN_TWO)
    other = build(tied=True, parents=ELEVEN_IN_TWO)
    (z, t) = inputs()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(z, t), model(z, t)) and other.head.weight is other.embedding.weight


def test_a_fresh_cluster_is_the_mean_of_its_tokens():
    vectors = table(build(parents=ELEVEN_IN_TWO))
    parents = torch.tensor(ELEVEN_IN_TWO[0])
    for cluster in (0, 1):
        torch.testing.assert_close(
            vectors[WORDS + cluster], vectors[:WORDS][parents == cluster].mean(0)
        )
    plain = table(build())
    assert torch.equal(vectors[:WORDS], plain[:WORDS]) and torch.equal(vectors[-1], plain[-1])


def test_bfloat16_tables_give_the_same_means():
    model = trained(parents=ELEVEN_IN_TWO)
    exact = model.embedding.means()
    torch.testing.assert_close(
        model.bfloat16().embedding.means().float(), exact, atol=0.01, rtol=0.02
    )
    assert model(*inputs()).isfinite().all()


def test_a_cluster_has_a_vector_beyond_those_of_its_tokens():
    """The gradient of a cluster's embedding reaches its own row whole, and each of its n tokens by
    1/n.
    """
    model = trained(parents=ELEVEN_IN_TWO)
    model.embedding(torch.tensor([[WORDS + 1]])).sum().backward()
    inside = torch.tensor(ELEVEN_IN_TWO[0]) == 1
    gradient = model.embedding.weight.grad
    torch.testing.assert_close(gradient[WORDS + 1], torch.ones(16))
    torch.testing.assert_close(gradient[:WORDS], (inside / inside.sum())[:, None].expand(-1, 16))
    assert (gradient[[WORDS, STATES - 1]] == 0).all()


def test_a_cluster_of_clusters_is_the_mean_over_all_tokens_beneath():
    parents = [torch.tensor([0, 0, 1, 1, 2, 2, 2, 2]), [0, 0, 1]]
    model = build(num_states=14, vocab_size=8, parents=parents)
    vectors = table(model)
    torch.testing.assert_close(vectors[9], vectors[2:4].mean(0))
    torch.testing.assert_close(vectors[11], vectors[:4].mean(0))
    torch.testing.assert_close(vectors[12], vectors[4:8].mean(0))


@pytest.mark.parametrize("parents", [(), ELEVEN_IN_TWO])
def test_clusters_can_start_at_centroids(parents):
    model = trained(parents=parents)
    centroids = torch.randn(2, 16)
    before = table(model)
    model.embedding.start_clusters_at(centroids)
    torch.testing.assert_close(table(model)[WORDS : WORDS + 2], centroids)
    assert torch.equal(table(model)[:WORDS], before[:WORDS]) and torch.equal(
        table(model)[-1], before[-1]
    )


@pytest.mark.parametrize("parents", [(), ELEVEN_IN_TWO])
def test_an_initialisation_sets_the_vectors_of_clusters_too(parents):
    model = build(parents=parents)
    vectors = torch.randn(model.num_states, 16)
    model.start_at(torch.zeros(WORDS), vectors)
    torch.testing.assert_close(table(model), vectors)


def test_centroids_of_another_shape_are_refused(as_users_call):
    for shape in [(2, 15), (4, 16), (2,)]:
        with pytest.raises(ValueError, match=r"centroids have shape.*must be \(n, 16\), n <= 3"):
            build().embedding.start_clusters_at(torch.zeros(shape))


test_refuses_bad_parents = refuses(r"""
    build(parents=[[0, 1]]) | ValueError | parents\[0\]: must be 11 int64
    build(parents=[torch.zeros(11)]) | ValueError
        | parents\[0\]: must be 11 int64 indices >= 0, got torch.float32
    build(parents=[[-1] + [0] * 10]) | ValueError | parents\[0\]: must be 11 int64 indices >= 0
    build(parents=[[0] * 10 + [2]]) | ValueError | parents\[0\]: cluster 1 has no token
    build(parents=[[0] * 5 + [1] * 6, [0, 0, 0]]) | ValueError | parents\[1\]: must be 2 int64
    build(parents=[list(range(11))]) | ValueError | 11 tokens and 11 clusters exceed num_states=14
""")


def test_the_auxiliary_head_is_trained_along_and_changes_no_token():
    model = build(num_clusters=2)
    (z, t) = inputs()
    assert (model.with_clusters(z, t)[1] == 0).all(), "a fresh one is uniform"
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tokens, clusters = model.with_clusters(z, t)
    assert clusters.shape == (3, 5, 2) and torch.equal(tokens, model(z, t))
    clusters.square().sum().backward()
    assert all((parameter.grad != 0).any() for parameter in model.cluster_head.parameters())
    assert model.head.weight.grad is None


def test_without_an_auxiliary_head_the_error_names_it():
    with pytest.raises(ValueError, match="num_clusters=0"):
        build().with_clusters(*inputs())
