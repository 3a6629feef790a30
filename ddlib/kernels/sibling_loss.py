"""Losses of child logits in plain hierarchies: cross-entropies among siblings.

At a state z of level i the divergence is -log of the model's probability of the child of z that is
an ancestor of x. With a softmax over siblings (theory section 11) this is one cross-entropy over
the children of z. If the tree of the output is finer than the hierarchy of the process, it is a sum
with one cross-entropy per tree level in between:

    divergence = sum over the tree's levels from that of the child to that below z
                 of LSE(siblings) - logit of x's ancestor

So a row needs |children| columns, and rows that need the same family of siblings share them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.kernels import fused
from ddlib.kernels.fused import FlatBatch, LossPart, Work, add_product, columns_of, multiply
from ddlib.kernels.subset_logsumexp import to_softmax
from ddlib.parameterization.tree_softmax import Children, Families


@dataclass(frozen=True)
class Siblings(LossPart):
    """Cross-entropies over families of siblings of one level of the tree."""

    families: Families
    rows: Int64[Tensor, "n"]
    """Indices of the rows, grouped by family."""
    child: Int64[Tensor, "n"]
    """The ancestor of each row's token in this level."""
    share: Float64[Tensor, "n"] | None = None
    """Weight of each row's cross-entropy; default 1."""


class FamilyQuery(NamedTuple):
    """Rows that need a cross-entropy among siblings in one level of the tree, and their
    families.
    """

    families: Families
    needed: Bool[Tensor, "N"]
    """True if a row needs the cross-entropy; an only child has probability 1 and needs none."""
    child: Int64[Tensor, "N"]
    """The ancestor of each row's token in this level, needed or not."""
    parent: Int64[Tensor, "N"]
    """The parent of ``child``."""


def family_queries(
    children: Children,
    levels: Sequence[int],
    x: Int64[Tensor, "N"],
    level: Int64[Tensor, "N"],
    hard: bool,
    every: bool = False,
) -> Iterator[FamilyQuery]:
    """Yield the rows that need a cross-entropy, for each level of the tree.

    Args:
        children: the tree.
        levels: the tree level of each plain level of the process.
        x: (N,) clean tokens.
        level: (N,) level of each row's state in the process; states above the plain levels need
            none.
        hard: whether states above the first level predict the token: among all tokens, or
            (posterior parameterization) among those under the state.
        every: whether the cross-entropies of all edges below a state are needed.
    """
    tree = children.tree
    tree_level = children.level_table(levels, level.device)
    plain_level = level.clamp_max(len(levels) - 1)
    top = tree_level[plain_level]
    bottom = tree_level[(plain_level - 1).clamp_min(0)]
    if hard or every:
        bottom = torch.where(plain_level > 1, 0, bottom)
    if hard:
        top = (
            top
            if children.parameterization == "posterior"
            else torch.where(plain_level > 1, tree.depth, top)
        )
    plain = (level > 0) & (level < len(levels))
    for at in range(tree.depth):
        families = children.families(at)
        child = x if at == 0 else tree.between(0, at).parents[x]
        parent = families.parents[child]
        yield FamilyQuery(
            families,
            plain & (bottom <= at) & (at < top) & (families.sizes[parent] > 1),
            child,
            parent,
        )


def parts(
    children: Children,
    levels: Sequence[int],
    rows: FlatBatch,
    level: Int64[Tensor, "N"],
    hard: bool,
    shares: Float64[Tensor, "N n"] | None = None,
) -> list[Siblings]:
    """Return one part for each level of the tree; arguments as in ``family_queries``.

    ``shares`` are the weights of each edge of the process for each row; with them all edges below a
    state are needed.
    """
    result = []
    for at, query in enumerate(
        family_queries(children, levels, rows.x, level, hard, shares is not None)
    ):
        families, needed, child, parent = query
        index = needed.nonzero()[:, 0]
        index = index[parent[index].argsort(stable=True)]
        # edge of the process that contains this level of the tree
        edge = sum(at >= other for other in levels[1:])
        share = None if shares is None or len(index) == 0 else shares[index, edge]
        result.append(Siblings(families, index, child[index], share))
    return result


@fused.add.register
def _add_siblings(part: Siblings, work: Work) -> None:
    (hidden, weight, bias), _, scale, budget, values, gradients = work
    if len(part.rows) == 0:
        return
    h = hidden[part.rows]
    rank = part.families.rank[part.child][:, None]
    nats = values.new_empty(len(h))
    factor = None if scale is None else scale[part.rows].to(values.dtype)[:, None]
    if factor is not None and part.share is not None:
        factor = factor * part.share.to(factor.dtype)[:, None]
    scaled = None if factor is None else (h * factor).to(h.dtype)
    slope = None if gradients is None else torch.empty_like(h)
    first = 0
    parents, counts = part.families.parents[part.child].unique_consecutive(return_counts=True)
    for parent, count in zip(parents.tolist(), counts.tolist(), strict=True):
        family = part.families.of(parent)
        matrix, offset = columns_of(weight, bias, family.columns)
        for index in torch.arange(first, first + count).split(budget.rows(family.size)):
            chunk = slice(int(index[0]), int(index[-1]) + 1)
            narrow = multiply(h[chunk], matrix, offset, h.new_empty(len(index), family.size))
            logits = narrow.to(values.dtype)
            target = rank[chunk]
            nats[chunk] = -logits.gather(1, target).squeeze(1)
            nats[chunk] += to_softmax(logits)
            if gradients is None or slope is None or scaled is None:
                continue
            logits.scatter_add_(1, target, torch.full_like(target, -1, dtype=logits.dtype))
            narrow = logits.to(h.dtype)
            torch.mm(narrow, matrix, out=slope[chunk])
            add_product(gradients.weight, family.columns, narrow.t(), scaled[chunk])
            if gradients.bias is not None and factor is not None:
                add_product(
                    gradients.bias[:, None], family.columns, narrow.t(), factor[chunk].to(h.dtype)
                )
        first += count
    nats.clamp_min_(0)  # rounding
    values.index_add_(
        0, part.rows, nats if part.share is None else nats * part.share.to(nats.dtype)
    )
    if gradients is not None and slope is not None and factor is not None:
        gradients.hidden.index_add_(0, part.rows, (slope * factor).to(h.dtype))
