"""Losses of token logits in plain hierarchies: difference of the log-masses of nested sets of tokens.

At a state z of level i the divergence depends only on the model's probabilities of the tokens under z, and only through
the mass of the tokens under the child of z that contains x:

    divergence = LSE(tokens under z) - LSE(tokens under the child of z that x is in)

So a position in a cluster needs the columns of the cluster's tokens, and one in level 0 none (theory section 2 with K
without spread).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.kernels.tile import Block, Divergence, Reader, Rows
from ddlib.parameterization.tree_softmax import Grouping


class Range(Divergence):
    """LSE over all given columns minus LSE over an inner set of columns.

    Args:
        group: returns the number of the inner set of each row; rows of one set are consecutive.
        inner: returns the positions, among the columns, of the tokens of an inner set.
    """

    def __init__(self, group: Callable[[Rows], Tensor], inner: Callable[[int], Tensor]) -> None:
        self.group, self.inner = group, inner

    def __call__(
        self, logits: Float[Tensor, "n K"], rows: Rows, derive: bool, read: Reader | None = None
    ) -> Float[Tensor, "n"]:
        below, shares, first = logits.new_empty(len(logits)), [], 0
        groups, counts = self.group(rows).unique_consecutive(return_counts=True)
        for number, count in zip(groups.tolist(), counts.tolist(), strict=True):
            columns = self.inner(number)
            part = logits[first : first + count, columns]
            below[first : first + count] = part.logsumexp(1)
            if derive:
                shares.append((slice(first, first + count), columns, part.softmax(1)))
            first += count
        outer = to_softmax(logits, read) if derive or read else logits.logsumexp(1)
        for group_rows, columns, share in shares:
            logits[group_rows].index_add_(1, columns, share, alpha=-1)
        return (outer - below).clamp_min(0)  # rounding


class TokenIn(Divergence):
    """LSE over all given columns minus the logit of x.

    Args:
        position: position of each token among the columns.
    """

    def __init__(self, position: Int64[Tensor, "V"]) -> None:
        self.position = position

    def __call__(
        self, logits: Float[Tensor, "n K"], rows: Rows, derive: bool, read: Reader | None = None
    ) -> Float[Tensor, "n"]:
        column = self.position[rows.x][:, None]
        target = logits.gather(1, column).squeeze(1)
        outer = to_softmax(logits, read) if derive or read else logits.logsumexp(1)
        if derive:
            logits.scatter_add_(1, column, torch.full_like(column, -1, dtype=logits.dtype))
        return (outer - target).clamp_min(0)


def tokens_under(hierarchy: Hierarchy, level: int) -> Grouping:
    """Group the tokens by their ancestor in ``level``, in ascending order; in level 0 by themselves."""
    tokens = torch.arange(hierarchy.vocab_size, device=hierarchy.starts.device)
    return Grouping(tokens if level == 0 else hierarchy.between(0, level).parents, hierarchy.levels[level])


def blocks(hierarchy: Hierarchy, level: int, rows: Rows, index: Tensor, hard: bool, within: bool) -> list[Block]:
    """Return blocks for the rows ``index``, all in one ``level`` above plain maps.

    In hard mode, levels above the first predict the token: among all tokens, or, if ``within``, among those under the
    state.
    """
    if hard and level > 1 and not within:
        return [Block(index, None, TokenIn(torch.arange(hierarchy.vocab_size, device=index.device)))]
    members, below = tokens_under(hierarchy, level), tokens_under(hierarchy, level - 1)
    state = hierarchy.local(rows.z[index], level)
    order = (state * hierarchy.vocab_size + below.parents[rows.x[index]]).argsort(stable=True)
    index, state = index[order], state[order]
    top = level == hierarchy.depth
    found, first = [], 0
    for member, count in zip(*(v.tolist() for v in state.unique_consecutive(return_counts=True)), strict=True):
        columns = None if top else members.members(member)
        found.append(Block(index[first : first + count], columns, _inner(1 if hard else level, top, members, below)))
        first += count
    return found


def _inner(level: int, top: bool, here: Grouping, below: Grouping) -> Divergence:
    position = torch.arange(len(here.rank), device=here.rank.device) if top else here.rank
    if level == 1:
        return TokenIn(position)
    return Range(lambda rows: below.parents[rows.x], lambda child: position[below.members(child)])


def to_softmax(logits: Float[Tensor, "n K"], read: Reader | None = None) -> Float[Tensor, "n"]:
    """Replace logits by their softmax and return their LSE; accurate, since the largest probability is at least 1/K.

    Args:
        logits: overwritten.
        read: function to call with the probabilities.
    """
    largest = logits.amax(1)
    torch.softmax(logits, 1, out=logits)
    if read is not None:
        read(logits)
    return largest - logits.amax(1).log()
