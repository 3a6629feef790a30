"""Model wrapper that evaluates only the rows and positions that change."""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Self, cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.parameterization.capabilities import Capabilities
from ddlib.parameterization.logits import Parameterization, cavity_logits, tree_of
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.runtime.logit_processors import LogitProcessors
from ddlib.samplers.runtime.output_layer import Head, grouped
from ddlib.typing import Denoiser, GuidedDenoiser, Logits, SplitDenoiser, StateProbs, Times, Tokens
from ddlib.utils.validation import check_devices, check_logits

_HELD = 1 << 24
"""Number of logits in memory at a time."""


class FullContext:
    """Model input without a context: the tokens of the sampler are the full sequence.

    ``rows``, if given, is (B,) bool and True at the rows that are evaluated; states and times are those of these rows.

    Args:
        denoiser: ``(z, t) -> logits``, split or not.
    """

    first: int = 0
    """Position in the sequence of the sampler's first token."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.denoiser = denoiser

    def text(self, z: Tokens) -> Int64[Tensor, "B n"]:
        """Return the sequences that contain the tokens; unknown positions hold numbers that are not tokens."""
        return z

    def logits(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        """Compute the logits of the tokens, (B, L, K)."""
        return self.denoiser(z, t)

    def features(self, z: Tokens, t: Times, rows: Tensor | None = None) -> Tensor:
        """Compute the features of a ``SplitDenoiser`` before its output layer, (B, L, D)."""
        return self.denoiser.features(z, t)  # type: ignore[attr-defined]

    def features_at(self, z: Tokens, t: Times, positions: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compute the features of a ``SparseDenoiser`` at some positions, (B, n, D)."""
        return self.denoiser.features_at(z, t, positions)  # type: ignore[attr-defined]


class ModelWrapper:
    """Wrapper of a denoiser whose output is the checked logits of the cavity distribution, float32 or float64.

    A call ``(z, t) -> logits`` evaluates every position. ``at`` evaluates selected positions: the denoiser runs only on
    the sequences that contain them, and only their logits are used and checked. With a ``SplitDenoiser`` no other
    logits are computed.

    Args:
        process: the forward process.
        denoiser: ``(z, t) -> logits``, split or not.
        parameterization: meaning of the logits, as in ``nelbo``; None for the one that the denoiser states.
        compact: whether sequences without a selected position are left out of the batch.
        wording: forbidden tokens and repetition penalty; None for neither.
        sight: context of the tokens in the model input; by default the tokens alone.

    Raises:
        ValueError: an unknown parameterization, an output layer for another vocabulary or tree.
    """

    cache_last: bool = False
    """True if the model is evaluated at all positions and the output of the last call is kept for identical inputs."""

    def __init__(
        self,
        process: ForwardProcess,
        denoiser: Denoiser,
        parameterization: Parameterization | None = "cavity",
        compact: bool = False,
        wording: LogitProcessors | None = None,
        sight: FullContext | None = None,
    ) -> None:
        self.process, self.denoiser, self.compact, self.wording = process, denoiser, compact, wording
        self.capabilities = Capabilities.of(denoiser)
        self.parameterization = self.capabilities.meaning(parameterization)
        self.sight = FullContext(denoiser) if sight is None else sight
        self.children = tree_of(process, self.parameterization)
        self.head = None
        if self.capabilities.is_split:
            split = cast(SplitDenoiser, denoiser)
            self.head = Head(process, split, self.children, self.capabilities.has_tree)
        self._trains = self.capabilities.in_training
        self._last: tuple[Tokens, Times, Tensor] | None = None
        self._descents: dict[tuple[bool, bool], Tensor] = {}

    def within(self, context: FullContext) -> Self:
        """Return a wrapper of the same denoiser whose input has another context."""
        wrapper = copy.copy(self)
        wrapper.sight, wrapper.cache_last, wrapper._last = context, False, None
        return wrapper

    def step_log_probs(self, z: Tokens, t: Times, s: Times) -> StateProbs:
        """Compute log-probabilities of z_s, not normalised, of a denoiser that ``has_step_distribution``."""
        log_probs = cast(GuidedDenoiser, self.denoiser).step_distribution
        assert log_probs is not None  # read with the capabilities
        return log_probs(z, t, s)

    def __call__(self, z: Tokens, t: Times) -> Logits:
        """Compute the logits over tokens at every position, (B, L, V)."""
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
        """Evaluate the model at selected positions; no network call if there are none.

        Args:
            z: (B, L) states.
            t: (B,) times, or (B, L).
            where: (B, L) bool, the selected positions.

        Yields:
            predictions at chunks of N positions.
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
        for chunk in where.nonzero().split(max(1, _HELD // self.process.vocab_size)):
            b, i = chunk.unbind(1)
            texts = z[b, :0] if text is None else text[b]
            times = t[b] if t.ndim == 1 else t[b, i]
            yield Predictions(self, output[slot[b], column[slot[b], i]], b, i, z[b, i], times, texts)

    def can_descend_tree(self, force: bool, single: bool) -> Bool[Tensor, "levels levels"]:
        """Return the pairs of levels, from (rows) and to (columns), with descents that need child logits only.

        There are none without child logits, or on an accelerator, where one kernel over all states is faster than
        several for every group of siblings.

        Args:
            force: whether tokens are kept inside their clusters.
            single: whether only descents by one level of the tree count.
        """
        if (force, single) not in self._descents:
            self._descents[force, single] = self._tree_descents(force, single)
        return self._descents[force, single]

    def _tree_descents(self, force: bool, single: bool) -> Bool[Tensor, "levels levels"]:
        process = self.process
        table = torch.zeros(len(process.levels), len(process.levels), dtype=torch.bool)
        if self.children is None or not isinstance(process, LevelProcess) or not self._narrows:
            return table
        tree_levels = self.children.levels_of(process.hierarchy)
        for level, top in enumerate(tree_levels):
            for target, bottom in enumerate(tree_levels[:level]):
                steps = 0 if top is None or bottom is None else top - bottom
                if steps == 1 or (steps > 1 and not single):
                    table[level, target] = process.subtree_logits_suffice(level, target, force)
        return table

    def can_restrict_columns(self, level: int, force: bool) -> bool:
        """Return whether the logits of the tokens below a state of this level alone determine its token.

        False also where fewer columns are not faster, as in ``can_descend_tree``.
        """
        process = self.process
        if self.children is not None or not isinstance(process, LevelProcess) or not self._narrows:
            return False
        return level < len(process.levels) - 1 and process.subtree_logits_suffice(level, 0, force)

    @property
    def _narrows(self) -> bool:
        """True if fewer logits may be faster; logit processors need all of them."""
        return self.process.device.type == "cpu" and self.wording is None

    def _whole(self, z: Tokens, t: Times) -> Float[Tensor, "B L K"]:
        """Return the output at every position, evaluated once for identical states and times."""
        if self._last is None or not (torch.equal(self._last[0], z) and torch.equal(self._last[1], t)):
            output, _ = self._run(z, t.to(torch.get_default_dtype()), torch.ones_like(z, dtype=torch.bool))
            self._last = z.clone(), t.clone(), output
        return self._last[2]

    def _run(
        self, z: Tokens, t: Times, where: Bool[Tensor, "B L"], kept: Tensor | None = None
    ) -> tuple[Tensor, Int64[Tensor, "B L"]]:
        """Compute features (B, n, D) of a split denoiser, logits (B, n, K) of another, and the column of each position.

        They have all positions, n = L, except for a ``SparseDenoiser`` on a CPU: there the selected positions come
        first, and others pad the shorter rows.
        """
        with self._evaluating(z):
            return self._output(z, t, where, kept)

    def _evaluating(self, z: Tokens) -> AbstractContextManager[None]:
        """Return a context that warns if the network is in training mode; a null context for other networks."""
        if not self._trains:
            return nullcontext()
        return self.capabilities.evaluating(z.device, "dd.sample or dd.likelihood")

    def _output(
        self, z: Tokens, t: Times, where: Bool[Tensor, "B L"], kept: Tensor | None
    ) -> tuple[Tensor, Int64[Tensor, "B L"]]:
        identity = torch.arange(z.shape[1], device=z.device).expand_as(z)
        if self.head is None:
            logits = self.sight.logits(z, t, kept)
            states = None if self.children is None else self.children.columns
            check_logits(logits, z.shape, self.process.vocab_size, states)
            check_devices(logits=logits, z=z)
            return logits, identity
        if self.capabilities.is_sparse and z.device.type == "cpu":
            column = where.cumsum(1) - 1
            number = int(column.max()) + 1
            positions = where.int().argsort(dim=1, descending=True, stable=True)[:, :number]
            features = self.sight.features_at(z, t, positions, kept)
        else:
            column, number = identity, z.shape[1]
            features = self.sight.features(z, t, kept)
        self.head.check(features, z, number)
        return features, column


class Predictions(NamedTuple):
    """Model output at N positions; logits are computed on demand."""

    network: ModelWrapper
    output: Float[Tensor, "N K"]
    """Features of a split denoiser, logits of another."""
    b: Int64[Tensor, "N"]
    """Indices of their sequences."""
    i: Int64[Tensor, "N"]
    """Their positions in the sequences."""
    z: Int64[Tensor, "N"]
    """Their states."""
    t: Float[Tensor, "N"]
    """Their times."""
    texts: Int64[Tensor, "N L"]
    """Sequences that contain them, for logit processors; (N, 0) without processors."""

    def take(self, some: Tensor) -> "Predictions":
        """Select some of the positions."""
        return Predictions(self.network, *(column[some] for column in self[1:]))

    def words(self, target: Int64[Tensor, "N"], force: bool = False) -> Float[Tensor, "N 1 V"]:
        """Compute cavity logits over tokens, possibly -inf at irrelevant tokens, see ``subtree_logits_suffice``.

        Args:
            target: (N,) the level to which each position descends.
            force: whether tokens are kept inside their clusters.
        """
        network = self.network
        rows = self.output if network.head is None else network.head.logits(self.output, self.z, target, force)
        logits = cavity_logits(network.process, rows[:, None], self.z[:, None], self.t, network.parameterization)
        if network.wording is None:
            return logits
        return network.wording(logits[:, 0], self.texts, self.i + network.sight.first)[:, None]

    def family(self, level: int, parent: Int64[Tensor, "N"]) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Compute the child logits of one parent per position, padded with -inf, and the indices of the children.

        Args:
            level: level of the children in the tree of the output.
            parent: (N,) index of each position's parent in the level above.
        """
        network, children = self.network, self.network.children
        assert children is not None
        if network.head is not None:
            return network.head.family(self.output, level, parent)
        row = self.output.split(children.tree.levels[:-1], -1)[level]
        row = row.to(torch.promote_types(row.dtype, torch.float32))
        parents = children.tree.maps[level].parents
        logits = torch.where(parents == parent[:, None], row, -torch.inf)
        return logits, torch.arange(len(parents), device=row.device).expand_as(logits)

    def under(self) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Compute the logits of the tokens below each state, padded with -inf, and the indices of the tokens."""
        network, hierarchy = self.network, self.network.process.hierarchy
        assert hierarchy is not None
        if network.head is not None:
            return network.head.under(self.output, self.z)
        output = self.output.to(torch.promote_types(self.output.dtype, torch.float32))
        return grouped(self.z, hierarchy.under, lambda rows, _, tokens: output[rows][:, tokens])
