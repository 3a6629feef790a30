"""The network as samplers ask it: no more often, and at no more places, than the mathematics needs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.parameterization.logits import Parameterization, cavity_logits, evaluating, in_training, tree_of
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.runtime.context import FullContext
from ddlib.samplers.runtime.logit_processors import LogitProcessors
from ddlib.samplers.runtime.output_layer import Head, grouped
from ddlib.typing import Denoiser, GuidedDenoiser, Logits, SparseDenoiser, SplitDenoiser, Times, Tokens
from ddlib.utils.validation import check_devices, check_logits

_HELD = 1 << 24
"""Logits held at a time."""


class ModelWrapper:
    """A denoiser with its logits turned into those of the cavity law, float32 or float64, and checked.

    Called as ``(z, t) -> logits`` it answers at every position. ``at`` runs it only on sequences that are asked about,
    and looks at (and checks) only the positions that are; of a ``SplitDenoiser`` nothing else is computed.

    Args:
        process: the forward process.
        denoiser: ``(z, t) -> logits``, split or not.
        parameterization: what the logits mean, as in ``nelbo``.
        compact: whether sequences that are not asked about are left out of the batch.
        wording: what is made of the law of words; None for nothing.
        sight: what the denoiser is shown; by default the tokens alone.

    Raises:
        ValueError: an unknown parameterization, an output layer for another vocabulary or tree.
    """

    cache_last: bool = False
    """Whether it answers for all positions and remembers that: whoever asks about the same states again has it."""

    def __init__(
        self,
        process: ForwardProcess,
        denoiser: Denoiser,
        parameterization: Parameterization = "cavity",
        compact: bool = False,
        wording: LogitProcessors | None = None,
        sight: FullContext | None = None,
    ) -> None:
        self.process, self.denoiser = process, denoiser
        self.sight = FullContext(denoiser) if sight is None else sight
        self.parameterization, self.compact, self.wording = parameterization, compact, wording
        self._trains = in_training(denoiser)
        self._last: tuple[Tokens, Times, Tensor] | None = None
        self.children = tree_of(process, parameterization)
        self.step_distribution = denoiser.step_distribution if isinstance(denoiser, GuidedDenoiser) else None
        self._split = denoiser if isinstance(denoiser, SplitDenoiser) else None
        self.head = None if self._split is None else Head(process, self._split, self.children)

    def __call__(self, z: Tokens, t: Times) -> Logits:
        """The logits over words at every position, (B, L, V)."""
        if self.cache_last:
            output = self._whole(z, t)
            if self.head is not None:
                shape, flat = z.shape, z.flatten()
                output = self.head.logits(output.flatten(0, 1), flat, torch.zeros_like(flat), False).view(*shape, -1)
        else:
            with self._evaluating(z):
                output = self.sight.logits(z, t.to(torch.get_default_dtype()))
        logits = cavity_logits(self.process, output, z, t, self.parameterization)
        return logits if self.wording is None else self.wording.everywhere(logits, self.sight.text(z), self.sight.first)

    def at(self, z: Tokens, t: Times, where: Bool[Tensor, "B L"]) -> Iterator["Predictions"]:
        """What it says at some positions, a chunk of N at a time; no call if there are none.

        Args:
            z: (B, L) states.
            t: (B,) times, or (B, L).
            where: (B, L) the positions that are asked about.
        """
        if not bool(where.any()):
            return
        kept = where.any(-1) if self.compact and not self.cache_last else torch.ones_like(where[:, 0])
        if self.cache_last:
            output, column = self._whole(z, t), torch.arange(z.shape[1], device=z.device).expand_as(z)
        else:
            output, column = self._run(z[kept], t[kept].to(torch.get_default_dtype()), where[kept], kept)
        text = None if self.wording is None else self.sight.text(z)
        slot = kept.cumsum(0) - 1
        for places in where.nonzero().split(max(1, _HELD // self.process.vocab_size)):
            b, i = places.unbind(1)
            texts = z[b, :0] if text is None else text[b]
            own = t[b] if t.ndim == 1 else t[b, i]
            yield Predictions(self, output[slot[b], column[slot[b], i]], b, i, z[b, i], own, texts)

    def can_descend_tree(self, force: bool, single: bool) -> Bool[Tensor, "levels levels"] | None:
        """From which level of the process (rows) to which one goes down from child to child, by child logits alone.

        None if nobody does, as without child logits or on an accelerator, where a launch over all states is quicker
        than several for every family.

        Args:
            force: whether tokens are kept inside their clusters.
            single: only by one step of the tree.
        """
        process = self.process
        if self.children is None or not isinstance(process, LevelProcess) or not self._narrows:
            return None
        table = torch.zeros(len(process.levels), len(process.levels), dtype=torch.bool)
        known = self.children.levels_of(process.hierarchy)
        for level, top in enumerate(known):
            for target, bottom in enumerate(known[:level]):
                steps = 0 if top is None or bottom is None else top - bottom
                table[level, target] = (
                    steps > 0
                    and process.subtree_logits_suffice(level, target, force)
                    and steps <= (1 if single else steps)
                )
        return table

    def can_restrict_columns(self, level: int, force: bool) -> bool:
        """Whether states of a level of the process land on words by word logits of the words under them alone.

        As ``can_descend_tree``, where looking at few of them is quicker.
        """
        process = self.process
        if self.children is not None or not isinstance(process, LevelProcess) or not self._narrows:
            return False
        return level < len(process.levels) - 1 and process.subtree_logits_suffice(level, 0, force)

    @property
    def _narrows(self) -> bool:
        """Whether it may be quicker to look at few logits; what is made of the law of words needs all of it."""
        return self.process.device.type == "cpu" and self.wording is None

    def _whole(self, z: Tokens, t: Times) -> Float[Tensor, "B L K"]:
        """What it says everywhere, said once about the same states and times."""
        if self._last is None or not (torch.equal(self._last[0], z) and torch.equal(self._last[1], t)):
            output, _ = self._run(z, t.to(torch.get_default_dtype()), torch.ones_like(z, dtype=torch.bool))
            self._last = z.clone(), t.clone(), output
        return self._last[2]

    def _run(
        self, z: Tokens, t: Times, asked: Bool[Tensor, "B L"], kept: Tensor | None = None
    ) -> tuple[Tensor, Int64[Tensor, "B L"]]:
        """Features (B, n, D) of a split denoiser, logits (B, n, K) of another; and where each position is among the n.

        All positions, n = L, but of a ``SparseDenoiser`` on a CPU those that are asked about, ahead of others that
        fill up the shorter rows.
        """
        with self._evaluating(z):
            return self._answer(z, t, asked, kept)

    def _evaluating(self, z: Tokens) -> AbstractContextManager[None]:
        """Warns of a network that behaves as in training; of another there is nothing to watch in every step."""
        if not self._trains:
            return nullcontext()
        return evaluating(self.denoiser, z.device, "dd.sample or dd.likelihood")

    def _answer(
        self, z: Tokens, t: Times, asked: Bool[Tensor, "B L"], kept: Tensor | None
    ) -> tuple[Tensor, Int64[Tensor, "B L"]]:
        everyone = torch.arange(z.shape[1], device=z.device).expand_as(z)
        if self._split is None or self.head is None:
            logits = self.sight.logits(z, t, kept)
            states = None if self.children is None else self.children.columns
            check_logits(logits, z.shape, self.process.vocab_size, states)
            check_devices(logits=logits, z=z)
            return logits, everyone
        if isinstance(self._split, SparseDenoiser) and z.device.type == "cpu":
            column = asked.cumsum(1) - 1
            number = int(column.max()) + 1
            positions = asked.int().argsort(dim=1, descending=True, stable=True)[:, :number]
            features = self.sight.features_at(z, t, positions, kept)
        else:
            column, number = everyone, z.shape[1]
            features = self.sight.features(z, t, kept)
        self.head.check(features, z, number)
        return features, column


class Predictions(NamedTuple):
    """What the network says at N positions; logits are computed as they are asked for."""

    network: ModelWrapper
    output: Float[Tensor, "N K"]
    """Features of a split denoiser, logits of another."""
    b: Int64[Tensor, "N"]
    """Which sequences."""
    i: Int64[Tensor, "N"]
    """Which positions in them."""
    z: Int64[Tensor, "N"]
    """Their states."""
    t: Float[Tensor, "N"]
    """Their times."""
    texts: Int64[Tensor, "N L"]
    """The texts they stand in, where that matters; else (N, 0)."""

    def take(self, some: Tensor) -> "Predictions":
        """Some of the positions."""
        return Predictions(self.network, *(column[some] for column in self[1:]))

    def words(self, target: Int64[Tensor, "N"], force: bool = False) -> Float[Tensor, "N 1 V"]:
        """Cavity logits over tokens; -inf may stand at tokens that do not matter, see ``subtree_logits_suffice``.

        Args:
            target: the level that each position lands in.
            force: whether tokens are kept inside their clusters.
        """
        network = self.network
        rows = self.output if network.head is None else network.head.logits(self.output, self.z, target, force)
        logits = cavity_logits(network.process, rows[:, None], self.z[:, None], self.t, network.parameterization)
        return (
            logits
            if network.wording is None
            else network.wording(logits[:, 0], self.texts, self.i + network.sight.first)[:, None]
        )

    def family(self, level: int, parent: Int64[Tensor, "N"]) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Child logits: those of the children of one state per position, others -inf, and which they are.

        Args:
            level: of the children in the tree of the output.
            parent: the member of the level above, of each position.
        """
        network, children = self.network, self.network.children
        assert children is not None
        if network.head is not None:
            return network.head.family(self.output, level, parent)
        own = self.output.split(children.tree.levels[:-1], -1)[level]
        own = own.to(torch.promote_types(own.dtype, torch.float32))
        parents = children.tree.maps[level].parents
        logits = torch.where(parents == parent[:, None], own, -torch.inf)
        return logits, torch.arange(len(parents), device=own.device).expand_as(logits)

    def under(self) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Word logits: those of the words under each state, others -inf, and which they are."""
        network, hierarchy = self.network, self.network.process.hierarchy
        assert hierarchy is not None
        if network.head is not None:
            return network.head.under(self.output, self.z)
        own = self.output.to(torch.promote_types(self.output.dtype, torch.float32))
        return grouped(self.z, hierarchy.under, lambda mine, _, words: own[mine][:, words])
