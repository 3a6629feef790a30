"""Embeddings of noisy states: one vector for every token, cluster and mask."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.dit.heads import round_up, tokens_beneath
from ddlib_models.io.constants import Constants


class StateEmbedding(Constants, nn.Embedding):
    """One vector per state; that of a cluster may be learned relative to the mean of its tokens.

        e(z) = table[z]                                             without ``parents``
        e(c) = table[c] + mean of table[w] over the tokens w of c   with them, for a cluster c

    States are tokens, then each level's clusters in order, then any others. The table starts
    uniform in +-1/sqrt(D), as in MDLM and its successors; with ``parents`` the clusters' rows start
    at zero, so that a fresh cluster is the mean of its tokens.

    Args:
        num_states: number of states.
        vocab_size: number of tokens, which are the first states.
        dim: width D.
        pad_to: the number of rows is rounded up to a multiple of this; no state uses the additional
            rows.
        parents: one vector per level, finest first: the parent of every token, then of every
            cluster; each counts from 0 within its own level.
        rows: minimum number of rows; an output layer may use those beyond the states.

    Raises:
        ValueError: naming the level and the rule it breaks.
    """

    def __init__(
        self,
        num_states: int,
        vocab_size: int,
        dim: int,
        pad_to: int = 1,
        parents: Sequence[Sequence[int] | Tensor] = (),
        rows: int = 0,
    ) -> None:
        super().__init__(round_up(max(num_states, rows), pad_to), dim)
        self.num_states = num_states
        self.vocab_size = vocab_size
        tokens, sizes = tokens_beneath(vocab_size, parents)
        tokens = tokens.to(self.weight.device)
        sizes = sizes.to(self.weight.device)
        self.num_clusters = len(sizes)
        if vocab_size + self.num_clusters > num_states:
            raise ValueError(
                f"parents: {vocab_size} tokens and {self.num_clusters} clusters exceed "
                f"num_states={num_states}"
            )
        self.tokens = tokens
        self.starts = sizes.cumsum(0) - sizes
        with torch.no_grad():
            self.weight[vocab_size : vocab_size + self.num_clusters] = 0
            self.weight[num_states:rows] = 0

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    @torch.no_grad()
    def set_vectors(self, vectors: Float[Tensor, "S D"]) -> None:
        """Set the embeddings of all states.

        With ``parents`` the rows of clusters are differences to their means.
        """
        self.weight[: self.num_states] = vectors
        self.start_clusters_at(vectors[self.vocab_size : self.vocab_size + self.num_clusters])

    def forward(self, z: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        x = super().forward(z)
        if not self.num_clusters:
            return x
        cluster = z - self.vocab_size
        # tokens, the mask and all else read the last row, which is zero
        row = torch.where(
            (cluster >= 0) & (cluster < self.num_clusters), cluster, self.num_clusters
        )
        return x + F.embedding(row, F.pad(self.means(), (0, 0, 0, 1)))

    def means(self) -> Float[Tensor, "n D"]:
        """Compute the mean of its tokens' vectors for every cluster of ``parents``."""
        return F.embedding_bag(self.tokens, self.weight, self.starts, mode="mean")

    @torch.no_grad()
    def start_clusters_at(self, centroids: Float[Tensor, "n D"]) -> None:
        """Set the first clusters' embeddings to these vectors, such as the centroids of the
        clustering.

        With ``parents`` it sets the difference to the current mean of the cluster's tokens: set the
        tokens first.

        Raises:
            ValueError: another width, or more rows than there are states besides the tokens.
        """
        limit = self.num_clusters or self.num_states - self.vocab_size
        if (
            centroids.ndim != 2
            or len(centroids) > limit
            or centroids.shape[1] != self.embedding_dim
        ):
            raise ValueError(
                f"centroids have shape {tuple(centroids.shape)}: must be (n, "
                f"{self.embedding_dim}), n <= {limit}"
            )
        learned = centroids.to(self.weight)
        if self.num_clusters:
            learned = learned - self.means()[: len(centroids)]
        self.weight[self.vocab_size : self.vocab_size + len(centroids)] = learned


def cluster_means(
    rows: Float[Tensor, "V D"], parents: Sequence[Sequence[int] | Tensor]
) -> Float[Tensor, "n D"]:
    """Compute the mean of its tokens' vectors for every cluster of ``parents``, in the format of
    ``StateEmbedding``.

    Raises:
        ValueError: naming the level and the rule it breaks.
    """
    tokens, sizes = (part.to(rows.device) for part in tokens_beneath(len(rows), parents))
    return F.embedding_bag(tokens, rows, sizes.cumsum(0) - sizes, mode="mean")
