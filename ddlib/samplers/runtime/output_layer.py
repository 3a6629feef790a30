"""The output layer as samplers use it: the logits of the words, or of the children, that decide where a row lands."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import linear

from ddlib.parameterization.tree_softmax import Children, has_tree
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.typing import SplitDenoiser
from ddlib.utils.validation import check_devices, check_shape


class Head:
    """The output layer of a split denoiser.

    Args:
        process: the forward process.
        denoiser: in halves.
        children: of which tree's states it gives logits; None for words.

    Raises:
        ValueError: a matrix for another vocabulary, or for another tree.
    """

    def __init__(self, process: ForwardProcess, denoiser: SplitDenoiser, children: Children | None) -> None:
        self.process, self.children = process, children
        if children is not None and has_tree(denoiser):
            children.check(denoiser.tree or ())
            self.weight, self.bias, rows = denoiser.siblings()
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
        """All logits of the rows ``hidden``; on a CPU -inf at words that have no say where states ``z`` land."""
        if self.children is not None or hidden.device.type != "cpu":
            logits = self.product(hidden)  # one launch, not several for every cluster
            rows = None if self.children is None else self.children.rows
            return logits if rows is None else logits[:, rows]
        distinct, which = torch.stack([z, target]).unique(dim=1, return_inverse=True)
        words = [self._words(state, to, force) for state, to in distinct.t().tolist()]
        if all(one is None for one in words):
            return self.product(hidden)
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        logits = torch.full((len(hidden), len(self.weight)), -torch.inf, dtype=wide, device=hidden.device)
        for k, one in enumerate(words):
            if one is not None:
                mine = (which == k).nonzero()
                logits[mine, one] = self.product(hidden[mine[:, 0]], one)
        everything = torch.tensor([one is None for one in words], device=which.device)[which]
        if bool(everything.any()):
            logits[everything] = self.product(hidden[everything])
        return logits

    def product(self, hidden: Float[Tensor, "N D"], columns: Tensor | slice = slice(None)) -> Float[Tensor, "N K"]:
        """Logits of some rows of the matrix, in float32 or wider; of all of them by default."""
        bias = None if self.bias is None else self.bias[columns]
        logits = linear(hidden.to(self.weight.dtype), self.weight[columns], bias)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def family(
        self, hidden: Float[Tensor, "N D"], level: int, parent: Int64[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Logits of the children, members of ``level`` of the tree, of one parent per row; and which they are.

        The largest family fills the K columns, a smaller one is followed by -inf.
        """
        assert self.children is not None
        families = self.children.families(level)
        return grouped(
            parent, families.members, lambda mine, one, _: self.product(hidden[mine], families.of(one).columns)
        )

    def under(
        self, hidden: Float[Tensor, "N D"], z: Int64[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Logits of the words under one state per row, and which they are, as ``family`` has them."""
        assert self.process.hierarchy is not None
        return grouped(z, self.process.hierarchy.under, lambda mine, _, words: self.product(hidden[mine], words))

    def check(self, features: Tensor, z: Tensor, number: int) -> None:
        """Raises ValueError unless features are (B, number, D), on the device of the matrix and of the states."""
        want = (len(z), number, self.weight.shape[1])
        check_shape("features", features, want, f"(B, L, D) = {want}")
        check_devices(features=features, weight=self.weight, z=z)

    def _words(self, z: int, target: int, force: bool) -> Tensor | None:
        """The tokens whose logits determine the descendant of state ``z`` in level ``target``; None for all."""
        process = self.process
        if not isinstance(process, LevelProcess) or z == process.num_states - 1:
            return None
        level = int(process.hierarchy.level_of(torch.tensor(z, device=process.hierarchy.starts.device)))
        return process.hierarchy.under(z) if process.subtree_logits_suffice(level, target, force) else None


def grouped(
    key: Int64[Tensor, "N"], members: Callable[[int], Tensor], logits: Callable[[Tensor, int, Tensor], Tensor]
) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
    """What is computed for all positions with one key at once: logits (N, K), and whose they are.

    Args:
        key: of each position.
        members: of a key, those that logits are computed of.
        logits: ``(rows, key, its members) -> logits`` of these for some of the N.
    """
    distinct, which = key.unique(return_inverse=True)
    theirs = [members(one) for one in distinct.tolist()]
    shape = (len(key), max(map(len, theirs)))
    found, whose = None, key.new_zeros(shape)
    for k, (one, own) in enumerate(zip(distinct.tolist(), theirs, strict=True)):
        mine = (which == k).nonzero()[:, 0]
        here = logits(mine, one, own)
        found = here.new_full(shape, -torch.inf) if found is None else found
        found[mine, : len(own)] = here
        whose[mine, : len(own)] = own
    assert found is not None
    return found, whose
