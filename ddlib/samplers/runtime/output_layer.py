"""Output layer of a denoiser, restricted to the logits that a descent depends on."""

import copy
from bisect import bisect_right
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import linear

from ddlib.parameterization.logits import (
    TokenLogits,
    check_columns,
    check_layer,
    token_columns,
)
from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.typing import ChildDenoiser, SplitDenoiser
from ddlib.utils.precision import float32_or_wider
from ddlib.utils.validation import check_devices, check_shape


class FullOutput:
    """Output of a denoiser that is not split: all logits of every position.

    Args:
        process: the forward process.
        layout: columns of the logits.
    """

    def __init__(self, process: ForwardProcess, layout: Children | TokenLogits) -> None:
        self.process = process
        self.layout = layout

    def check(self, output: Tensor, z: Tensor, number: int) -> None:
        """Raise TypeError or ValueError unless the output has its shape at ``number`` positions, on
        one device.
        """
        check_columns(self.process, self.layout, output, z.shape)
        check_devices(logits=output, z=z)

    def of_component(self, number: int, layout: Children | TokenLogits) -> "FullOutput":
        """Return the output layer of a component of the process."""
        return OutputOfComponent(self.process, number, layout)

    def narrow(self, output: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Return the part of the output that logits of the process depend on."""
        return output

    def all_logits(self, hidden: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Compute all logits of the rows ``hidden``."""
        return hidden

    def logits(
        self,
        hidden: Float[Tensor, "N D"],
        z: Int64[Tensor, "N"],
        target: Int64[Tensor, "N"],
        force: bool,
    ) -> Float[Tensor, "N K"]:
        """Compute the logits of the rows ``hidden``.

        On a CPU -inf at tokens that descents from ``z`` ignore.
        """
        return hidden

    def product(
        self, hidden: Float[Tensor, "N D"], columns: Tensor | slice = slice(None)
    ) -> Float[Tensor, "N K"]:
        """Compute some columns of the logits, by default all, in float32 or wider."""
        return float32_or_wider(hidden)[:, columns]

    def family(
        self, hidden: Float[Tensor, "N D"], level: int, parent: Int64[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Compute the child logits of one parent per row, padded with -inf, and the indices of the
        children.

        Args:
            hidden: (N, D) outputs of the denoiser, with child logits.
            level: level of the children in the tree of the output.
            parent: (N,) index of each row's parent in the level above.
        """
        tree = cast(Children, self.layout).tree
        parent = self._member(level, parent)
        row = hidden.split(tree.levels[:-1], -1)[level]
        row = float32_or_wider(row)
        parents = tree.maps[level].parents
        logits = torch.where(parents == parent[:, None], row, -torch.inf)
        return logits, torch.arange(len(parents), device=row.device).expand_as(logits)

    def _member(self, level: int, parent: Int64[Tensor, "N"]) -> Int64[Tensor, "N"]:
        """Return the parents of ``level`` as members of the output's tree, where each of several
        masks is the root.
        """
        return (
            torch.zeros_like(parent)
            if level == cast(Children, self.layout).tree.depth - 1
            else parent
        )

    def under(
        self, hidden: Float[Tensor, "N D"], z: Int64[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Compute the logits of the tokens below one state per row, padded with -inf, and the
        indices of the tokens.
        """
        hierarchy = cast(LevelProcess, self.process).hierarchy
        return logits_by_group(
            z, hierarchy.under, lambda rows, _, tokens: self.product(hidden[rows], tokens)
        )


class OutputOfComponent(FullOutput):
    """Output of a denoiser that is not split, at positions of a component.

    Args:
        whole: the process of the sequences.
        number: number of the component.
        layout: columns of its logits.
    """

    def __init__(self, whole: ForwardProcess, number: int, layout: Children | TokenLogits) -> None:
        super().__init__(whole.components[number].process, layout)
        self.whole = whole
        self.number = number

    def narrow(self, output: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        if isinstance(self.layout, Children):
            return output
        return output[:, token_columns(self.whole, output.shape[1])[self.number]]


class Head(FullOutput):
    """Output layer of a split denoiser, whose outputs are features.

    Args:
        process: the forward process.
        denoiser: the split denoiser.
        layout: columns of the logits.
        has_tree: whether the denoiser is a ``ChildDenoiser`` with a tree, that of the layout.

    Raises:
        ValueError: a weight matrix for another vocabulary.
    """

    def __init__(
        self,
        process: ForwardProcess,
        denoiser: SplitDenoiser,
        layout: Children | TokenLogits,
        has_tree: bool = False,
    ) -> None:
        super().__init__(process, layout)
        if isinstance(layout, Children) and has_tree:
            self.weight, self.bias, rows = cast(ChildDenoiser, denoiser).siblings()
            self.layout = layout = Children(layout.tree, layout.parameterization, rows)
        else:
            self.weight, self.bias = denoiser.output_weights()
        check_layer(process, layout, self.weight, self.bias, owner="the denoiser's ")

    def of_component(self, number: int, layout: Children | TokenLogits) -> "FullOutput":
        rows = token_columns(self.process, len(self.weight))[number]
        head = copy.copy(self)
        head.process = self.process.components[number].process
        head.layout = layout
        head.weight = self.weight[rows]
        head.bias = None if self.bias is None else self.bias[rows]
        return head

    def all_logits(self, hidden: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        logits = self.product(hidden)
        return logits if self.layout.rows is None else logits[:, self.layout.rows]

    def logits(
        self,
        hidden: Float[Tensor, "N D"],
        z: Int64[Tensor, "N"],
        target: Int64[Tensor, "N"],
        force: bool,
    ) -> Float[Tensor, "N K"]:
        if isinstance(self.layout, Children) or hidden.device.type != "cpu":
            return self.all_logits(hidden)  # one kernel launch instead of several per cluster
        distinct, which = distinct_pairs(z, target)
        columns = [self._token_columns(state, to, force) for state, to in distinct]
        if all(tokens is None for tokens in columns):
            return self.product(hidden)
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        logits = torch.full(
            (len(hidden), len(self.weight)), -torch.inf, dtype=wide, device=hidden.device
        )
        for k, tokens in enumerate(columns):
            if tokens is not None:
                rows = (which == k).nonzero()
                logits[rows, tokens] = self.product(hidden[rows[:, 0]], tokens)
        full = torch.tensor([tokens is None for tokens in columns], device=which.device)[which]
        if bool(full.any()):
            logits[full] = self.product(hidden[full])
        return logits

    def product(
        self, hidden: Float[Tensor, "N D"], columns: Tensor | slice = slice(None)
    ) -> Float[Tensor, "N K"]:
        bias = None if self.bias is None else self.bias[columns]
        logits = linear(hidden.to(self.weight.dtype), self.weight[columns], bias)
        return float32_or_wider(logits)

    def family(
        self, hidden: Float[Tensor, "N D"], level: int, parent: Int64[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Compute the logits of the children alone: K is the largest number of children of these
        parents.
        """
        families = cast(Children, self.layout).families(level)
        parent = self._member(level, parent)
        return logits_by_group(
            parent,
            families.members,
            lambda rows, key, _: self.product(hidden[rows], families.of(key).columns),
        )

    def check(self, output: Tensor, z: Tensor, number: int) -> None:
        """Raise ValueError unless features are (B, number, D), on the device of the weights and of
        the states.
        """
        want = (len(z), number, self.weight.shape[1])
        check_shape("features", output, want, f"(B, L, D) = {want}")
        check_devices(features=output, weight=self.weight, z=z)

    def _token_columns(self, z: int, target: int, force: bool) -> Tensor | None:
        """Return the tokens whose logits determine the descendant of state ``z`` in level
        ``target``; None for all.
        """
        process = self.process
        if not isinstance(process, LevelProcess):
            return None
        level = bisect_right(process.hierarchy.offsets, z) - 1
        if level == process.hierarchy.depth:  # a mask
            return None
        return (
            process.hierarchy.under(z)
            if process.subtree_logits_suffice(level, target, force)
            else None
        )


def distinct_pairs(
    first: Int64[Tensor, "N"], second: Int64[Tensor, "N"]
) -> tuple[list[list[int]], Int64[Tensor, "N"]]:
    """Return the distinct pairs of two columns of integers >= 0, in their order, and the index of
    the pair of each row.

    Sorts one key for both: ``unique(dim=1)`` compares columns one by one, which takes as long as an
    output layer.
    """
    base = second.max() + 1 if len(second) else 1
    keys, which = (first * base + second).unique(return_inverse=True)
    return torch.stack([keys // base, keys % base], 1).tolist(), which


def logits_by_group(
    key: Int64[Tensor, "N"],
    members: Callable[[int], Tensor],
    logits: Callable[[Tensor, int, Tensor], Tensor],
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
    result = None
    indices = key.new_zeros(shape)
    for k, (value, group) in enumerate(groups):
        rows = (which == k).nonzero()[:, 0]
        output = logits(rows, value, group)
        result = output.new_full(shape, -torch.inf) if result is None else result
        result[rows, : len(group)] = output
        indices[rows, : len(group)] = group
    assert result is not None
    return result, indices
