"""Child logits of plain hierarchies: a token's divergence is what its states' siblings make of it.

At a state z of level i the divergence is -log of the probability that the network gives to the child of z that x is
below. With a softmax over siblings (theory section 11) that is one cross-entropy over the children of z, or one for
each level of the tree between the two where the tree of the output is finer than the noise:

    divergence = sum over the tree's levels from that of the child to that below z of LSE(siblings) - own logit

So a token asks for |children| columns, and tokens that ask for the same family share them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.kernels import fused
from ddlib.kernels.fused import Work, add_product, columns_of, multiply
from ddlib.kernels.subset_logsumexp import to_softmax
from ddlib.kernels.tile import Part, Rows
from ddlib.parameterization.tree_softmax import Children, Families


@dataclass(frozen=True)
class Siblings(Part):
    """Cross-entropies over families of one level of the tree."""

    families: Families
    rows: Int64[Tensor, "n"]
    """Which tokens, those of a family one after another."""
    child: Int64[Tensor, "n"]
    """The member of the level that each of them is below."""
    share: Float64[Tensor, "n"] | None = None
    """By what the cross-entropy of each counts; default 1."""


class Wanted(NamedTuple):
    """Which tokens need the distribution of the members of one level of the tree among their siblings, and of which member."""

    families: Families
    mine: Bool[Tensor, "N"]
    """Whether a token needs it: an only child is certain."""
    child: Int64[Tensor, "N"]
    """The member above each token's token, needed or not."""
    parent: Int64[Tensor, "N"]
    """Of ``child``."""


def asked(
    children: Children, levels: Sequence[int], x: Int64[Tensor, "N"], level: Int64[Tensor, "N"], hard: bool,
    every: bool = False,
) -> Iterator[Wanted]:  # fmt: skip
    """What is asked of each level of the tree.

    Args:
        children: the tree.
        levels: the tree's level that each plain level of the noise is.
        x: the tokens.
        level: in the noise, of each token; those above the plain ones need none.
        hard: whether the levels above the first ask for the token: among all tokens, or with the distribution of a
            posterior among those under the state.
        every: whether all edges below a state are asked for.
    """
    tree, place = children.tree, torch.tensor(levels, device=level.device)
    here = level.clamp_max(len(levels) - 1)
    top, bottom = place[here], place[(here - 1).clamp_min(0)]
    if hard or every:
        bottom = torch.where(here > 1, 0, bottom)
    if hard:
        top = top if children.law == "posterior" else torch.where(here > 1, tree.depth, top)
    plain = (level > 0) & (level < len(levels))
    for at in range(tree.depth):
        families, child = children.families(at), x if at == 0 else tree.between(0, at).parents[x]
        parent = families.parents[child]
        yield Wanted(families, plain & (bottom <= at) & (at < top) & (families.sizes[parent] > 1), child, parent)


def parts(
    children: Children, levels: Sequence[int], rows: Rows, level: Int64[Tensor, "N"], hard: bool,
    shares: Float64[Tensor, "N n"] | None = None,
) -> list[Siblings]:  # fmt: skip
    """One part for each level of the tree; arguments as ``asked``.

    ``shares`` say by what each edge of the noise counts at each token, and that all below its state are asked for.
    """
    found = []
    for at, wanted in enumerate(asked(children, levels, rows.x, level, hard, shares is not None)):
        families, mine, child, parent = wanted
        index = mine.nonzero()[:, 0]
        index = index[parent[index].argsort(stable=True)]
        edge = sum(at >= other for other in levels[1:])  # of the noise, that this level of the tree lies on
        share = None if shares is None or len(index) == 0 else shares[index, edge]
        found.append(Siblings(families, index, child[index], share))
    return found


@fused.add.register
def _siblings(part: Siblings, work: Work) -> None:
    (hidden, weight, bias), _, scale, held, values, gradients = work
    if len(part.rows) == 0:
        return
    h, rank = hidden[part.rows], part.families.rank[part.child][:, None]
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
        for here in torch.arange(first, first + count).split(max(held // family.size, 1)):
            some = slice(int(here[0]), int(here[-1]) + 1)
            narrow = multiply(h[some], matrix, offset, h.new_empty(len(here), family.size))
            logits, own = narrow.to(values.dtype), rank[some]
            nats[some] = -logits.gather(1, own).squeeze(1)
            nats[some] += to_softmax(logits)
            if gradients is None or slope is None or scaled is None:
                continue
            logits.scatter_add_(1, own, torch.full_like(own, -1, dtype=logits.dtype))
            narrow = logits.to(h.dtype)
            torch.mm(narrow, matrix, out=slope[some])
            add_product(gradients.weight, family.columns, narrow.t(), scaled[some])
            if gradients.bias is not None and factor is not None:
                add_product(gradients.bias[:, None], family.columns, narrow.t(), factor[some].to(h.dtype))
        first += count
    nats.clamp_min_(0)  # rounding
    values.index_add_(0, part.rows, nats if part.share is None else nats * part.share.to(nats.dtype))
    if gradients is not None and slope is not None and factor is not None:
        gradients.hidden.index_add_(0, part.rows, (slope * factor).to(h.dtype))
