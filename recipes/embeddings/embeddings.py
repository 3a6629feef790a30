"""Token embeddings from the training text, and the clusters that form the middle level of a
hierarchy.

PPMI + SVD (Levy & Goldberg 2014, "Neural word embedding as implicit matrix factorization"), then
k-means; conversely, the network's embeddings of clusters from the centroids.
"""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds
from torch import Tensor

from ddlib.hierarchies import Clusters
from ddlib_models import DiT

Pairs = tuple[int, Int[np.ndarray, " n"], Int[np.ndarray, " n"]]
"""A distance, and the tokens of each pair at this distance: the first ones and the second ones."""


def cooccurrences(tokens: Int[Tensor, " N"], vocab_size: int, reach: int) -> csr_array:
    """Count how often two tokens stand at most ``reach`` apart, weighted by distance: sparse (V,
    V), symmetric.

    A pair at distance d counts (reach + 1 - d) / reach, the expectation of word2vec over random
    window sizes.
    """
    stream = tokens.numpy()
    pairs = ((distance, stream[:-distance], stream[distance:]) for distance in range(1, reach + 1))
    return counts_of_pairs(pairs, vocab_size, reach)


def counts_of_pairs(pairs: Iterable[Pairs], vocab_size: int, reach: int) -> csr_array:
    """Count pairs of tokens, weighted by distance as in ``cooccurrences``: sparse (V, V),
    symmetric.

    Args:
        pairs: for each distance the first and the second tokens.
        vocab_size: vocabulary size V.
        reach: maximum distance of a neighbour to either side.
    """
    size = (vocab_size, vocab_size)
    ahead = csr_array(size)
    for distance, first, second in pairs:
        weight = np.full(len(first), (reach + 1 - distance) / reach, dtype=np.float32)
        ahead = ahead + csr_array((weight, (first, second)), shape=size)
    return csr_array(ahead + ahead.T)


def word_embeddings(
    tokens: Int[Tensor, " N"],
    vocab_size: int,
    dim: int,
    reach: int = 4,
    smoothing: float = 0.75,
    seed: int = 0,
) -> Float[Tensor, "V dim"]:
    """Return unit vectors whose inner products follow the positive pointwise mutual information of
    neighbours.

        PPMI(w, c) = max(0, log [ P(w, c) / (P(w) P_s(c)) ]),
        P_s(c) ~ count(c)^smoothing,  rows of U sqrt(S)

    A token that never occurs gets the zero vector.

    Args:
        tokens: the training text.
        vocab_size: vocabulary size V.
        dim: number of singular values kept.
        reach: maximum distance of a neighbour to either side.
        smoothing: exponent that keeps rare neighbours from dominating.
        seed: seed of the singular value iteration's start.

    Raises:
        ValueError: if the text is not longer than ``reach``, or ``dim`` not below the vocabulary.
    """
    if len(tokens) <= reach:
        raise ValueError(
            f"tokens: {len(tokens)} are too few for neighbours at distances up to {reach}; give "
            "more text"
        )
    if not 0 < dim < vocab_size:
        raise ValueError(f"dim={dim}: must lie between 1 and vocab_size-1={vocab_size - 1}")
    return ppmi_vectors(cooccurrences(tokens, vocab_size, reach), dim, smoothing, seed)


def ppmi_vectors(
    counted: csr_array, dim: int, smoothing: float = 0.75, seed: int = 0
) -> Float[Tensor, "V dim"]:
    """Return the vectors of ``word_embeddings`` for given numbers of co-occurrences (V, V).

    Raises:
        ValueError: ``dim`` is not below the vocabulary.
    """
    vocab_size = counted.shape[0]
    if not 0 < dim < vocab_size:
        raise ValueError(f"dim={dim}: must lie between 1 and vocab_size-1={vocab_size - 1}")
    counts = counted.tocoo()
    word = np.asarray(counts.sum(axis=1)).ravel()
    context = word**smoothing / (word**smoothing).sum()
    row, column = counts.coords
    information = np.log(counts.data / (word[row] * context[column]))
    ppmi = csr_array((np.maximum(information, 0.0), (row, column)), shape=counts.shape)
    start = np.random.default_rng(seed).standard_normal(vocab_size)
    left, scale, _ = svds(ppmi, k=dim, v0=start)
    vectors = left[:, ::-1] * np.sqrt(scale[::-1])
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    return torch.from_numpy((vectors / np.where(norm > 0, norm, 1)).astype(np.float32))


def cluster(
    embeddings: Float[Tensor, "V dim"], num_clusters: int, seed: int = 0
) -> Int[Tensor, " V"]:
    """Return the k-means cluster of every token, (V,) int64 in 0..num_clusters-1, each of them
    used.

    Raises:
        ValueError: if there are fewer different vectors than clusters.
    """
    from sklearn.cluster import KMeans  # takes more than a second to import

    distinct = len(torch.unique(embeddings, dim=0))
    if not 1 < num_clusters <= distinct:
        raise ValueError(
            f"num_clusters={num_clusters}: must lie between 2 and the {distinct} different "
            "embeddings"
        )
    labels = KMeans(num_clusters, n_init=2, max_iter=100, random_state=seed).fit_predict(
        embeddings.numpy()
    )
    # Number the clusters without a gap even if k-means returned one empty.
    _, parents = np.unique(labels, return_inverse=True)
    return torch.from_numpy(parents.astype(np.int64))


def typical_words(
    embeddings: Float[Tensor, "V dim"],
    parents: Int[Tensor, " V"],
    counts: Int[Tensor, " V"],
    num: int,
) -> list[list[int]]:
    """Return the ``num`` most typical tokens of each cluster, most typical first: near the centre
    and frequent.

    Typical = cosine to the cluster's mean times log(1 + count).
    """
    score = torch.empty(len(parents))
    for index in range(int(parents.max()) + 1):
        members = parents == index
        centre = embeddings[members].mean(0)
        score[members] = embeddings[members] @ centre / centre.norm().clamp_min(1e-12)
    score = score * counts.float().log1p()
    order = score.argsort(descending=True)
    return [
        order[parents[order] == index][:num].tolist() for index in range(int(parents.max()) + 1)
    ]


def start_at_centroids(model: DiT, clusters: Clusters) -> None:
    """Set the network's embeddings of the clusters to the centroids of all levels, in the order of
    the states.

    HDLM clusters vectors as wide as the network and takes their centroids unchanged. Centroids of
    another width are rotated onto their principal axes, of which the first ones are kept, or all
    and padded with zeros: no other rotation preserves their inner products better (Eckart & Young
    1936).

    Raises:
        ValueError: if the states of the network are not these tokens, these clusters and the mask.
    """
    words = len(clusters.parents[0])
    rows = torch.cat(clusters.centroids).float()
    states = words + len(rows) + 1
    dim = model.embedding.embedding_dim
    if (model.vocab_size, model.num_states) != (words, states):
        raise ValueError(
            f"clusters has {words} tokens and {len(rows)} clusters, so {states} states with the "
            "mask: the model must "
            f"have the same numbers, but has {model.vocab_size} tokens and {model.num_states} "
            "states"
        )
    if rows.shape[1] != dim:
        axes = torch.linalg.svd(rows, full_matrices=False).Vh[:dim]
        rows = torch.nn.functional.pad(rows @ axes.T, (0, dim - len(axes)))
    model.embedding.start_clusters_at(rows)
