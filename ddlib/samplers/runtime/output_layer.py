"""Output layer of split denoisers, restricted to the logits that a descent depends on."""

from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import linear

from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.typing import ChildDenoiser, SplitDenoiser
from ddlib.utils.validation import check_devices, check_shape


class Head:
    """Output layer of a split denoiser.

    Args:
        process: the forward process.
        denoiser: the split denoiser.
        children: tree whose states have logits; None for logits over tokens.
        has_tree: whether the denoiser is a ``ChildDenoiser`` with a tree.

    Raises:
        ValueError: a weight matrix for another vocabulary, or for another tree.
    """

    def __init__(
        self, process: ForwardProcess, denoiser: SplitDenoiser, children: Children | None, has_tree: bool = False
    ) -> None:
        self.process, self.children = process, children
        if children is not None and has_tree:
            tree = cast(ChildDenoiser, denoiser)
            children.check(tree.tree or ())
            self.weight, self.bias, rows = tree.siblings()
            self.children = children = Children(children.tree, children.law, rows)
            size, rule = max(len(self.weight), children.num_rows), "(rows, D), one for each state"
        else:
            self.weight, self.bias = denoiser.words()
            size, rule = process.vocab_size, f"(V, D) with the process's V = {process.vocab_size}"
            if children is not None:
                size, rule = children.columns, f"(S - 1, D) = ({children.columns}, D), a row per state but the root"
        check_shape("the denoiser's weight", self.weight, (size, None), rule)
        if self.bias is not None:
            check_shape("the denoiser's bias", self.bias, (size,), f"({rule[1:].split(',')[0]},) = ({size},)")

    def logits(
        self, hidden: Float[Tensor, "N D"], z: Int64[Tensor, "N"], target: Int64[Tensor, "N"], force: bool
    ) -> Float[Tensor, "N K"]:
        """Compute all logits of the rows ``hidden``; on a CPU -inf at tokens that descents from ``z`` ignore."""
        if self.children is not None or hidden.device.type != "cpu":
            logits = self.product(hidden)  # one kernel launch instead of several per cluster
            rows = None if self.children is None else self.children.rows
            return logits if rows is None else logits[:, rows]
        distinct, which = torch.stack([z, target]).unique(dim=1, return_inverse=True)
        columns = [self._words(state, to, force) for state, to in distinct.t().tolist()]
        if all(tokens is None for tokens in columns):
            return self.product(hidden)
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        logits = torch.full((len(hidden), len(self.weight)), -torch.inf, dtype=wide, device=hidden.device)
        for k, tokens in enumerate(columns):
            if tokens is not None:
                rows = (which == k).nonzero()
                logits[rows, tokens] = self.product(hidden[rows[:, 0]], tokens)
        full = torch.tensor([tokens is None for tokens in columns], device=which.device)[which]
        if bool(full.any()):
            logits[full] = self.product(hidden[full])
        return logits

    def product(self, hidden: Float[Tensor, "N D"], columns: Tensor | slice = slice(None)) -> Float[Tensor, "N K"]:
        """Compute the logits of some rows of the weight matrix, by default all, in float32 or wider."""
        bias = None if self.bias is None else self.bias[columns]
        logits = linear(hidden.to(self.weight.dtype), self.weight[columns], bias)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def family(
        self, hidden: Float[Tensor, "N D"], level: int, parent: Int64[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Compute the logits of the children of one parent per row, and their indices in ``level`` of the tree.

        K is the largest number of children; rows with fewer are padded with -inf.
        """
        assert self.children is not None
        families = self.children.families(level)
        return grouped(
            parent, families.members, lambda rows, key, _: self.product(hidden[rows], families.of(key).columns)
        )

    def under(
        self, hidden: Float[Tensor, "N D"], z: Int64[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Compute the logits of the tokens below one state per row, and the tokens, padded as in ``family``."""
        assert self.process.hierarchy is not None
        return grouped(z, self.process.hierarchy.under, lambda rows, _, tokens: self.product(hidden[rows], tokens))

    def check(self, features: Tensor, z: Tensor, number: int) -> None:
        """Raise ValueError unless features are (B, number, D), on the device of the weights and of the states."""
        want = (len(z), number, self.weight.shape[1])
        check_shape("features", features, want, f"(B, L, D) = {want}")
        check_devices(features=features, weight=self.weight, z=z)

    def _words(self, z: int, target: int, force: bool) -> Tensor | None:
        """Return the tokens whose logits determine the descendant of state ``z`` in level ``target``; None for all."""
        process = self.process
        if not isinstance(process, LevelProcess) or z == process.num_states - 1:
            return None
        level = int(process.hierarchy.level_of(torch.tensor(z, device=process.hierarchy.starts.device)))
        return process.hierarchy.under(z) if process.subtree_logits_suffice(level, target, force) else None


def grouped(
    key: Int64[Tensor, "N"], members: Callable[[int], Tensor], logits: Callable[[Tensor, int, Tensor], Tensor]
) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
    """Compute logits group by group, for all positions with the same key at once.

    Args:
        key: (N,) key of each position.
        members: map from a key to the indices that have logits.
        logits: ``(rows, key, members) -> logits`` of the members at some of the N positions.

    Returns:
        logits (N, K), padded with -inf, and the indices of the members (N, K), padded with 0.
    """
    distinct, which = key.unique(return_inverse=True)
    groups = [(value, members(value)) for value in distinct.tolist()]
    shape = (len(key), max(len(group) for _, group in groups))
    result, indices = None, key.new_zeros(shape)
    for k, (value, group) in enumerate(groups):
        rows = (which == k).nonzero()[:, 0]
        output = logits(rows, value, group)
        result = output.new_full(shape, -torch.inf) if result is None else result
        result[rows, : len(group)] = output
        indices[rows, : len(group)] = group
    assert result is not None
    return result, indices
