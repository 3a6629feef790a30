"""Token trees as networks store them: one plain parent vector per level."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


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
    found = []
    for level, given in enumerate(tree):
        edge = torch.as_tensor(given, device="cpu")
        if edge.dtype != torch.int64 or edge.shape != (children,) or int(edge.min()) < 0:
            raise ValueError(
                f"{name}[{level}]: must be {children} int64 indices >= 0, got {edge.dtype} "
                f"{tuple(edge.shape)}"
            )
        children = int(edge.max()) + 1
        counts = edge.bincount(minlength=children)
        if int(counts.min()) == 0:
            raise ValueError(f"{name}[{level}]: cluster {int(counts.argmin())} has no token")
        found.append(edge)
    return found


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
