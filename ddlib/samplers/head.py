"""The output layer as samplers use it: the logits of the words, or of the children, that decide where a row lands."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import linear

from ddlib.checks import check_devices, check_shape
from ddlib.children import Children, has_tree
from ddlib.processes import ForwardProcess
from ddlib.typing import SplitDenoiser


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
        weight, bias = self.weight, self.bias
        hidden = hidden.to(weight.dtype)
        if self.children is not None or hidden.device.type != "cpu":
            logits = linear(hidden, weight, bias)  # one launch over all words, not several for every cluster
            rows = None if self.children is None else self.children.rows
            return logits if rows is None else logits[:, rows]
        wide = torch.promote_types(weight.dtype, torch.float32)
        logits = torch.full((len(hidden), len(weight)), -torch.inf, dtype=wide, device=hidden.device)
        distinct, which = torch.stack([z, target]).unique(dim=1, return_inverse=True)
        all_words = torch.zeros_like(which, dtype=torch.bool)
        for k, (state, to) in enumerate(distinct.t().tolist()):
            words = self._words(state, to, force)
            if words is None:
                all_words |= which == k
                continue
            mine = (which == k).nonzero()
            here = linear(hidden[mine[:, 0]], weight[words], None if bias is None else bias[words])
            logits[mine, words] = here.to(wide)
        if bool(all_words.any()):
            logits[all_words] = linear(hidden[all_words], weight, bias).to(wide)
        return logits

    def family(
        self, hidden: Float[Tensor, "N D"], level: int, parent: Int64[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Logits of the children, members of ``level`` of the tree, of one parent per row; and which they are.

        The largest family fills the K columns, a smaller one is followed by -inf.
        """
        assert self.children is not None
        families = self.children.families(level)
        hidden = hidden.to(self.weight.dtype)
        width = int(families.sizes[parent].max())
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        logits = torch.full((len(hidden), width), -torch.inf, dtype=wide, device=hidden.device)
        members = torch.zeros_like(logits, dtype=torch.int64)
        distinct, which = parent.unique(return_inverse=True)
        for k, one in enumerate(distinct.tolist()):
            family, mine = families.of(one), (which == k).nonzero()[:, 0]
            bias = None if self.bias is None else self.bias[family.columns]
            logits[mine, : family.size] = linear(hidden[mine], self.weight[family.columns], bias).to(wide)
            members[mine, : family.size] = families.members(one)
        return logits, members

    def check(self, features: Tensor, z: Tensor, number: int) -> None:
        """Raises ValueError unless features are (B, number, D), on the device of the matrix and of the states."""
        want = (len(z), number, self.weight.shape[1])
        check_shape("features", features, want, f"(B, L, D) = {want}")
        check_devices(features=features, weight=self.weight, z=z)

    def _words(self, z: int, target: int, force: bool) -> Tensor | None:
        """The words whose logits decide where state ``z`` lands in level ``target``; None for all."""
        hierarchy = self.process.hierarchy
        if hierarchy is None or z == self.process.num_states - 1:
            return None
        level = int(hierarchy.level_of(torch.tensor(z, device=hierarchy.starts.device)))
        return hierarchy.under(z) if self.process.descends(level, target, force) else None
