"""What a state looks like to the network: an embedding for every word, cluster and mask."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.dit.heads import round_up
from ddlib_models.dit.tree_head import words_beneath
from ddlib_models.io.constants import Constants


class StateEmbedding(Constants, nn.Embedding):
    """One vector per state; that of a cluster may add the mean of its words to what it learns.

        e(z) = table[z]                                            without ``parents``
        e(c) = table[c] + mean of table[w] over the words w of c   with them, for a cluster c

    States are words, then each level's clusters in order, then whatever else there is. The table starts uniform in
    +-1/sqrt(D), as in MDLM and its successors; with ``parents`` the clusters' rows start at zero, so that a fresh
    cluster is the mean of its words.

    Args:
        num_states: number of states.
        vocab_size: how many of them, the first ones, are words.
        dim: width D.
        pad_to: the table gets rows that no state reads, up to a multiple of this.
        parents: one vector per level, finest first: the parent of every word, then of every cluster; each counts from 0
            within its own level.
        rows: rows that the table has at least: beyond those of the states an output layer may keep its own.

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
        self.num_states, self.vocab_size = num_states, vocab_size
        words, sizes = words_beneath(vocab_size, parents)
        words, sizes = words.to(self.weight.device), sizes.to(self.weight.device)
        self.num_clusters = len(sizes)
        if vocab_size + self.num_clusters > num_states:
            raise ValueError(
                f"parents: {vocab_size} words and {self.num_clusters} clusters exceed num_states={num_states}"
            )
        self.words, self.starts = words, sizes.cumsum(0) - sizes
        with torch.no_grad():
            self.weight[vocab_size : vocab_size + self.num_clusters] = 0
            self.weight[num_states:rows] = 0

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, z: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        x = super().forward(z)
        if not self.num_clusters:
            return x
        cluster = z - self.vocab_size
        # words, the mask and all else read the last row, which is zero
        row = torch.where((cluster >= 0) & (cluster < self.num_clusters), cluster, self.num_clusters)
        return x + F.embedding(row, F.pad(self.means(), (0, 0, 0, 1)))

    def means(self) -> Float[Tensor, "n D"]:
        """The mean of its words' vectors for every cluster of ``parents``."""
        return F.embedding_bag(self.words, self.weight, self.starts, mode="mean")

    @torch.no_grad()
    def start_clusters_at(self, centroids: Float[Tensor, "n D"]) -> None:
        """Makes the first clusters' embeddings these vectors, such as the centroids of the clustering.

        With ``parents`` it sets what a cluster adds to the mean of its words as they are now: set the words first.

        Raises:
            ValueError: another width, or more rows than states beside the words.
        """
        limit = self.num_clusters or self.num_states - self.vocab_size
        if centroids.ndim != 2 or len(centroids) > limit or centroids.shape[1] != self.embedding_dim:
            raise ValueError(
                f"centroids have shape {tuple(centroids.shape)}: must be (n, {self.embedding_dim}), n <= {limit}"
            )
        learned = centroids.to(self.weight)
        if self.num_clusters:
            learned = learned - self.means()[: len(centroids)]
        self.weight[self.vocab_size : self.vocab_size + len(centroids)] = learned


def cluster_means(rows: Float[Tensor, "V D"], parents: Sequence[Sequence[int] | Tensor]) -> Float[Tensor, "n D"]:
    """The mean of its words' vectors for every cluster of ``parents``, given as ``StateEmbedding`` takes them.

    Raises:
        ValueError: naming the level and the rule it breaks.
    """
    words, sizes = (part.to(rows.device) for part in words_beneath(len(rows), parents))
    return F.embedding_bag(words, rows, sizes.cumsum(0) - sizes, mode="mean")
