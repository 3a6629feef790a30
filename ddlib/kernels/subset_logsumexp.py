"""Losses of token logits in plain hierarchies: difference of the log-masses of nested sets of
tokens.

At a state z of level i the divergence depends only on the model's probabilities of the tokens under
z, and only through the mass of the tokens under the child of z that contains x:

    divergence = LSE(tokens under z) - LSE(tokens under the child of z that x is in)

So a position in a cluster needs the columns of the cluster's tokens, and one in level 0 none
(theory section 2 with K without spread). A loss on all edges below z is a weighted sum of such
differences, one for each edge.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.hierarchies.tables import once
from ddlib.kernels.fused import Block, Divergence, FlatBatch, Reader
from ddlib.parameterization.tree_softmax import Grouping

Shares = Callable[[FlatBatch], Float64[Tensor, "n edges"]]
"""Function that returns the weight of each edge below the state of each row."""


class Nested(Divergence):
    """Weighted sum of the differences of consecutive LSEs over nested sets of columns, the last of
    which has all.

    Args:
        sets: for each level, the tokens by their ancestor in it; the set of a row contains its x.
        position: position of each token among the columns; None if these are all tokens in order.
        shares: weight of the difference above each set; by default 1.
    """

    def __init__(
        self,
        sets: Sequence[Grouping],
        position: Int64[Tensor, "V"] | None,
        shares: Shares | None = None,
    ) -> None:
        self.sets = sets
        self.position = position
        self.shares = shares

    def __call__(
        self,
        logits: Float[Tensor, "n K"],
        rows: FlatBatch,
        derive: bool,
        read: Reader | None = None,
    ) -> Float[Tensor, "n"]:
        sums = []
        parts = []
        for tokens in self.sets:
            members, absent = tokens.pad_children(tokens.parents[rows.x])
            # absent members read column 0 and add slope 0 to it
            columns = _columns(self.position, members, logits).masked_fill_(absent, 0)
            part = logits.gather(1, columns).masked_fill_(absent, -torch.inf)
            sums.append(part.logsumexp(1))
            if derive:
                parts.append((columns, part.softmax(1)))
        sums.append(to_softmax(logits, read) if derive or read else logits.logsumexp(1))
        differences = [(upper - lower).clamp_min(0) for lower, upper in pairwise(sums)]  # rounding
        if self.shares is None:
            weights = [torch.ones_like(difference) for difference in differences]
        else:
            weights = list(self.shares(rows).to(logits.dtype).unbind(1))[: len(differences)]
            if derive:
                # logits are the softmax over all columns now, the slope of the last LSE
                logits.mul_(weights[-1][:, None])
        above = torch.zeros_like(weights[0])
        for (columns, part), weight in zip(parts, weights, strict=False):
            # an LSE is subtracted in the difference above it and added in the one below
            logits.scatter_add_(1, columns, part.mul_((above - weight)[:, None]))
            above = weight
        return sum(
            (weight * difference for weight, difference in zip(weights, differences, strict=True)),
            torch.zeros_like(above),
        )


class TokenIn(Divergence):
    """LSE over all given columns minus the logit of x.

    Args:
        position: position of each token among the columns; None if these are all tokens in order.
    """

    def __init__(self, position: Int64[Tensor, "V"] | None) -> None:
        self.position = position

    def __call__(
        self,
        logits: Float[Tensor, "n K"],
        rows: FlatBatch,
        derive: bool,
        read: Reader | None = None,
    ) -> Float[Tensor, "n"]:
        column = _columns(self.position, rows.x, logits)[:, None]
        target = logits.gather(1, column).squeeze(1)
        outer = to_softmax(logits, read) if derive or read else logits.logsumexp(1)
        if derive:
            logits.scatter_add_(1, column, torch.full_like(column, -1, dtype=logits.dtype))
        return (outer - target).clamp_min(0)


@once
def tokens_under(hierarchy: Hierarchy, level: int) -> Grouping:
    """Group the tokens by their ancestor in ``level``, in ascending order.

    In level 0 by themselves.
    """
    tokens = torch.arange(hierarchy.vocab_size, device=hierarchy.starts.device)
    return Grouping(
        tokens if level == 0 else hierarchy.between(0, level).parents, hierarchy.levels[level]
    )


def blocks(
    hierarchy: Hierarchy,
    level: int,
    rows: FlatBatch,
    index: Tensor,
    hard: bool,
    within: bool,
    shares: Shares | None = None,
) -> list[Block]:
    """Return blocks for the rows ``index``, all in one ``level`` above plain maps.

    In hard mode, levels above the first predict the token: among all tokens, or, if ``within``,
    among those under the state. With ``shares`` all edges below the state count, as in ``Nested``.
    """
    if hard and level > 1 and not within:
        return [Block(index, None, TokenIn(None))]
    # a mask has all tokens under it
    members = None if level == hierarchy.depth else tokens_under(hierarchy, level)
    position = None if members is None else members.rank
    state = hierarchy.local(rows.z[index], level)
    order = state.argsort(stable=True)
    index = index[order]
    state = state[order]
    divergence: Divergence
    if level > 1 and not hard:
        lowest = level - 1 if shares is None else 0
        divergence = Nested(
            [tokens_under(hierarchy, j) for j in range(lowest, level)], position, shares
        )
    else:
        divergence = TokenIn(position)
    result = []
    first = 0
    for member, count in zip(
        *(v.tolist() for v in state.unique_consecutive(return_counts=True)), strict=True
    ):
        columns = None if members is None else members.members(member)
        result.append(Block(index[first : first + count], columns, divergence))
        first += count
    return result


def _columns(
    position: Int64[Tensor, "V"] | None, tokens: Int64[Tensor, "*n"], logits: Float[Tensor, "m K"]
) -> Int64[Tensor, "*n"]:
    """Return the column of each token; any column for one that the block lacks: padding may have
    such states.
    """
    return tokens if position is None else position[tokens].clamp_max(logits.shape[1] - 1)


def to_softmax(logits: Float[Tensor, "n K"], read: Reader | None = None) -> Float[Tensor, "n"]:
    """Replace logits by their softmax and return their LSE.

    Accurate, since the largest probability is at least 1/K.

    Args:
        logits: overwritten.
        read: function to call with the probabilities.
    """
    largest = logits.amax(1)
    torch.softmax(logits, 1, out=logits)
    if read is not None:
        read(logits)
    return largest - logits.amax(1).log()
