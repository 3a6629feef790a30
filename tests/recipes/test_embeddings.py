"""Embeddings and clusters from the text itself."""

import numpy as np
import pytest
import torch
from refusals import refuses

import ddlib as dd
from recipes.embeddings import embeddings
from recipes.embeddings.starting import state_vectors

WORDS = 40


def stream(length: int = 4000) -> torch.Tensor:
    """Two kinds of words that alternate: even ones are followed by odd ones and the other way
    round.
    """
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(WORDS // 2, (length,), generator=generator)
    return 2 * half + torch.arange(length) % 2


def test_cooccurrences_by_hand():
    counts = embeddings.cooccurrences(torch.tensor([0, 1, 2]), 3, reach=2).toarray()
    np.testing.assert_allclose(counts, [[0, 1, 0.5], [1, 0, 1], [0.5, 1, 0]])


def test_embeddings_are_unit_vectors_and_repeat():
    first, again = (
        embeddings.word_embeddings(stream(), WORDS, 8, reach=1, seed=3) for _ in range(2)
    )
    assert torch.equal(first, again) and first.dtype == torch.float32
    torch.testing.assert_close(first.norm(dim=1), torch.ones(WORDS))


def test_words_that_never_occur_are_zero_and_still_get_a_cluster():
    vectors = embeddings.word_embeddings(stream(), WORDS + 3, 8, reach=1)
    torch.testing.assert_close(vectors[WORDS:], torch.zeros(3, 8), atol=1e-5, rtol=0)
    assert len(embeddings.cluster(vectors, 4)) == WORDS + 3


def test_clusters_find_the_two_kinds():
    parents = embeddings.cluster(embeddings.word_embeddings(stream(), WORDS, 2, reach=1), 2)
    assert len(parents[::2].unique()) == len(parents[1::2].unique()) == 1
    assert parents[0] != parents[1]


@pytest.mark.parametrize("num_clusters", [2, 7, WORDS])
def test_no_cluster_is_empty(num_clusters):
    vectors = torch.randn(WORDS, 5, generator=torch.Generator().manual_seed(0))
    parents = embeddings.cluster(vectors, num_clusters, seed=1)
    assert parents.shape == (WORDS,) and parents.dtype == torch.int64
    assert parents.unique().tolist() == list(range(num_clusters))
    assert torch.equal(parents, embeddings.cluster(vectors, num_clusters, seed=1))


def test_typical_words_are_members_most_frequent_first():
    vectors = torch.ones(4, 2)
    parents = torch.tensor([0, 1, 0, 0])
    assert embeddings.typical_words(vectors, parents, torch.tensor([1, 5, 9, 3]), num=2) == [
        [2, 3],
        [1],
    ]


test_refusals = refuses(r"""
    embeddings.word_embeddings(torch.arange(3), WORDS, 2, reach=3) | ValueError
        | tokens: 3 are too few
    embeddings.word_embeddings(stream(), WORDS, WORDS) | ValueError | dim=40
    embeddings.cluster(torch.eye(4), 1) | ValueError | num_clusters=1
    embeddings.cluster(torch.eye(4)[[0, 1, 2, 2]], 4) | ValueError | 3 different embeddings
""")


@pytest.mark.parametrize("overlap", [0.0, 0.4, 1.0])
def test_every_state_starts_at_the_mean_of_the_tokens_that_reach_it(overlap):
    """Also one that no token has reached at t = 1/2, as the mask under windows that do not
    overlap.
    """
    process = dd.presets.staged([0, 0, 1, 1], overlap=overlap)
    counts = torch.tensor([1, 3, 2, 0])
    vectors = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    found = state_vectors(process, counts, vectors)
    means = [
        (vectors[:2] * torch.tensor([[0.25], [0.75]])).sum(0),
        vectors[2],
        counts.float() @ vectors / 6,
    ]
    assert torch.allclose(found, torch.cat([vectors, torch.stack(means)]), atol=1e-6)
