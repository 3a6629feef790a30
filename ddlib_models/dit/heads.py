"""Output heads: logits over tokens, over the children of each state, over clusters for the paper's
ablation.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.dit.adaptive_norm import LayerNorm, modulate
from ddlib_models.dit.layers import Modulation
from ddlib_models.io.constants import Constants


def round_up(size: int, multiple: int) -> int:
    """Return the least multiple of ``multiple`` that is at least ``size``."""
    return -(-size // multiple) * multiple


class TokenHead(nn.Linear):
    """Logits over tokens, logits = W x + b, from a matrix that may have more rows than there are
    tokens.

    The additional rows pad the product to a size that GPUs multiply fast, or belong to other states
    when the matrix is that of the embedding. Their logits are cut off, so they get no probability
    and no gradient.

    Shapes: (B, L, D) -> (B, L, V).

    Args:
        dim: width D.
        vocab_size: number of tokens V.
        rows: rows of the matrix, at least V. It starts at zero, and so does the bias.
        pad_to: the number of rows is rounded up to a multiple of this.
    """

    def __init__(self, dim: int, vocab_size: int, rows: int, pad_to: int = 1) -> None:
        super().__init__(dim, round_up(rows, pad_to))
        self.vocab_size = vocab_size
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        return super().forward(x)[..., : self.vocab_size]

    def output_weights(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, " V"]]:
        """Return the tokens' rows of matrix and bias, for losses that fuse the head."""
        return self.weight[: self.vocab_size], self.bias[: self.vocab_size]

    @torch.no_grad()
    def start_at(self, log_probs: Float[Tensor, " V"]) -> None:
        """Set the bias so that the head starts at the given token probabilities."""
        self.bias[: self.vocab_size] = log_probs


class ChildHead(Constants, nn.Linear):
    """Logits for every state of a token tree but its root.

    A softmax over siblings is the distribution of a child.

    The token probabilities are products of child probabilities along the path from the root, so a
    loss needs the logits of some sibling groups and not of the vocabulary (``ddlib.Children``).
    Siblings are adjacent in memory; ``forward`` and ``tokens`` return them in the order of the
    states: tokens, then each level's clusters.

    Shapes: (B, L, D) -> (B, L, S - 1).

    Args:
        dim: width D.
        vocab_size: number of tokens V.
        tree: one vector per level, finest first: the parent of every token, then of every cluster;
            each counts from 0 within its own level. The root above the last is implied. Empty: only
            tokens.
        pad_to: rows of the matrix are rounded up to a multiple of this. They start at zero, and so
            does the bias.
        spare: set if the matrix is shared with an embedding, where tokens are the first rows and
            clusters follow the first ``spare`` rows. None: the matrix is not shared.

    Raises:
        ValueError: a level whose length is not the number of clusters below, or with a cluster that
            has no child.
    """

    def __init__(
        self,
        dim: int,
        vocab_size: int,
        tree: Sequence[Sequence[int] | Tensor] = (),
        pad_to: int = 1,
        spare: int | None = None,
    ) -> None:
        parents = parents_of("tree", vocab_size, tree)
        sizes = level_sizes(vocab_size, parents)
        count = sum(sizes)
        clusters = sum(sizes[1:])
        super().__init__(dim, round_up(count if spare is None else spare + clusters, pad_to))
        self.vocab_size = vocab_size
        self.tree = parents
        rows = torch.arange(count, device="cpu")
        if spare is None:
            levels = zip(rows.split(sizes), [*parents, rows[:0]], strict=True)
            rows = torch.cat(
                [
                    states[edge.argsort(stable=True)] if len(edge) else states
                    for states, edge in levels
                ]
            )
            # memory has each level sorted by parent; the inverse permutation is the row of each
            # state
            rows = rows.argsort()
        else:
            rows[vocab_size:] += spare - vocab_size
        self.rows = rows.to(self.weight.device)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L K"]:
        return super().forward(x)[..., self.rows]

    def output_weights(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"]]:
        """Return matrix and bias in the order of the states, S - 1 rows; a copy."""
        return self.weight[self.rows], self.bias[self.rows]

    def siblings(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"], Int[Tensor, " n"]]:
        """Return matrix and bias as stored, and the row of each state."""
        return self.weight, self.bias, self.rows

    @torch.no_grad()
    def start_at(self, log_probs: Float[Tensor, " V"]) -> None:
        """Set the bias to start at given token probabilities: the log of the total probability
        below each state.
        """
        levels = [log_probs.double().exp()]
        for parents in self.tree:
            above = levels[-1].new_zeros(int(parents.max()) + 1)
            levels.append(above.index_add(0, parents.to(above.device), levels[-1]))
        self.bias[self.rows] = torch.cat(levels).log().to(self.bias)

    @torch.no_grad()
    def to_token_head(self, pad_to: int = 1) -> TokenHead:
        """Return a token head with the same token probabilities, which needs one softmax only.

        It exists if, below the first level that branches, the normaliser of each sibling group does
        not depend on the features: children of one cluster must have equal rows of the matrix, as
        an only child has.

        Raises:
            ValueError: with the number of clusters for which that does not hold.
        """
        sizes = level_sizes(self.vocab_size, self.tree)
        weights, biases = (part.split(sizes) for part in self.output_weights())
        top = max((level for level, size in enumerate(sizes) if size > 1), default=0)
        uneven = 0
        above = torch.arange(self.vocab_size, device=self.weight.device)
        share = torch.zeros(self.vocab_size, dtype=torch.float64, device=self.weight.device)
        for weight, bias, edge in zip(weights[:top], biases[:top], self.tree, strict=False):
            parents = edge.to(weight.device)
            count = int(edge.max()) + 1
            first = torch.empty(count, dtype=torch.int64, device=weight.device).index_copy_(
                0, parents, torch.arange(len(parents), device=weight.device)
            )
            differs = (weight != weight[first[parents]]).any(1)
            uneven += len(parents[differs].unique())
            mass = bias.new_zeros(count, dtype=torch.float64).index_add_(
                0, parents, bias.double().exp()
            )
            # log-probability among the siblings: equal rows of the matrix cancel
            share += (bias.double() - mass.log()[parents])[above]
            above = parents[above]
        if uneven:
            raise ValueError(
                f"{uneven} of {sum(sizes[1:])} clusters have children with different rows: their "
                "normalisation "
                "depends on the features, so no head over tokens has the same distribution"
            )
        head = TokenHead(self.in_features, self.vocab_size, self.vocab_size, pad_to).to(self.weight)
        head.weight[: self.vocab_size] = weights[top][above]
        head.bias[: self.vocab_size] = (biases[top][above] + share).to(head.bias)
        return head


class ClusterHead(nn.Module):
    """Logits over clusters beside those over tokens: the auxiliary classifier c(z, t) of HDLM's
    ablation.

    It has a separate norm and modulation. It starts at the uniform distribution.

    Shapes: (B, L, D) -> (B, L, n).
    """

    def __init__(self, dim: int, num_clusters: int, cond_dim: int | None) -> None:
        super().__init__()
        self.norm = LayerNorm(dim)
        self.modulation = Modulation(dim, 2, cond_dim)
        self.linear = nn.Linear(dim, num_clusters)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        condition: Float[Tensor, "*batch C"] | None,
        owner: Int[Tensor, " L"] | None = None,
    ) -> Float[Tensor, "B L n"]:
        return self.linear(modulate(self.norm(x), *self.modulation(condition, owner)))


def parents_of(
    name: str, vocab_size: int, tree: Sequence[Sequence[int] | Tensor]
) -> list[Int[Tensor, " n"]]:
    """Check the parents of each level and return them on the CPU.

    The root above the last is not among them.

    Args:
        name: the name of ``tree`` in an error message.
        vocab_size: number of tokens V.
        tree: one vector per level, finest first: the parent of every token, then of every cluster;
            each counts from 0 within its own level.

    Raises:
        ValueError: a vector of another type or length, with a negative index, or with a cluster
            that has no child.
    """
    children = vocab_size
    edges = []
    for level, parents in enumerate(tree):
        edge = torch.as_tensor(parents, device="cpu")
        if edge.dtype != torch.int64 or edge.shape != (children,) or int(edge.min()) < 0:
            raise ValueError(
                f"{name}[{level}]: must be {children} int64 indices >= 0, got {edge.dtype} "
                f"{tuple(edge.shape)}"
            )
        children = int(edge.max()) + 1
        counts = edge.bincount(minlength=children)
        if int(counts.min()) == 0:
            raise ValueError(f"{name}[{level}]: cluster {int(counts.argmin())} has no token")
        edges.append(edge)
    return edges


def level_sizes(vocab_size: int, parents: Sequence[Tensor]) -> list[int]:
    """Return the number of nodes of each level below the root, tokens first."""
    return [vocab_size, *(int(edge.max()) + 1 for edge in parents)]


def tokens_beneath(
    vocab_size: int, parents: Sequence[Sequence[int] | Tensor]
) -> tuple[Int[Tensor, " n"], Int[Tensor, " m"]]:
    """Return the tokens below every cluster, cluster by cluster and level by level, and their
    number per cluster.

    Raises:
        ValueError: as in ``parents_of``.
    """
    ancestor = torch.arange(vocab_size, device="cpu")
    tokens = [ancestor[:0]]
    sizes = [ancestor[:0]]
    for edge in parents_of("parents", vocab_size, parents):
        ancestor = edge[ancestor]
        tokens.append(ancestor.argsort(stable=True))
        sizes.append(ancestor.bincount())
    return torch.cat(tokens), torch.cat(sizes)
