"""The network as samplers ask it: no more often, and at no more places, than the mathematics needs."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import linear

from ddlib.checks import check_devices, check_logits, check_shape, require
from ddlib.denoiser import cavity_logits, check_parameterization
from ddlib.processes import ForwardProcess
from ddlib.typing import Denoiser, Logits, SparseDenoiser, SplitDenoiser, Times, Tokens

_HELD = 1 << 24
"""Logits held at a time."""


class Network:
    """A denoiser with its logits turned into those of the cavity law, float32 or float64, and checked.

    Called as ``(z, t) -> logits`` it answers at every position. ``at`` runs it only on sequences that are asked about,
    and looks at (and checks) only the positions that are; of a ``SplitDenoiser`` nothing else is computed.

    Args:
        process: the forward process.
        denoiser: ``(z, t) -> logits``, split or not.
        parameterization: what the logits mean, "cavity" or "posterior".
        compact: whether sequences that are not asked about are left out of the batch.

    Raises:
        ValueError: an unknown parameterization, an output layer for another vocabulary.
    """

    def __init__(
        self, process: ForwardProcess, denoiser: Denoiser, parameterization: str = "cavity", compact: bool = False
    ) -> None:
        check_parameterization(parameterization)
        self.process, self.denoiser = process, denoiser
        self.parameterization, self.compact = parameterization, compact
        self._split = denoiser if isinstance(denoiser, SplitDenoiser) else None
        if self._split is not None:
            self._weight, self._bias = self._split.words()
            size = process.vocab_size
            check_shape("the denoiser's weight", self._weight, (size, None), f"(V, D) with the process's V = {size}")
            if self._bias is not None:
                check_shape("the denoiser's bias", self._bias, (size,), f"(V,) = ({size},)")

    def __call__(self, z: Tokens, t: Times) -> Logits:
        """The logits at every position, (B, L, V)."""
        logits = self.denoiser(z, t.to(torch.get_default_dtype()))
        return cavity_logits(self.process, logits, z, t, self.parameterization)

    def at(
        self, z: Tokens, t: Times, where: Bool[Tensor, "B L"], target: Tokens, force: bool = False
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The logits at some positions, a chunk of N at a time; no call if there are none.

        Args:
            z: (B, L) states.
            t: (B,) times.
            where: (B, L) the positions that are asked about.
            target: (B, L) the level that each of them lands in.
            force: whether tokens are kept inside their clusters.

        Yields:
            which sequences (N,), which positions in them (N,), and their logits (N, 1, V), -inf where a word has no
            say, see ``ForwardProcess.needed_words``.
        """
        if not bool(where.any()):
            return
        kept = where.any(-1) if self.compact else torch.ones_like(where[:, 0])
        output, column = self._run(z[kept], t[kept].to(torch.get_default_dtype()), where[kept])
        slot = kept.cumsum(0) - 1
        for places in where.nonzero().split(max(1, _HELD // self.process.vocab_size)):
            b, i = places.unbind(1)
            rows, here = output[slot[b], column[slot[b], i]], z[b, i]
            if self._split is not None:
                rows = self._head(rows, here, target[b, i], force)
            yield b, i, cavity_logits(self.process, rows[:, None], here[:, None], t[b], self.parameterization)

    def _run(self, z: Tokens, t: Times, asked: Bool[Tensor, "B L"]) -> tuple[Tensor, Int64[Tensor, "B L"]]:
        """Features (B, n, D) of a split denoiser, logits (B, n, V) of another; and where each position is among the n.

        All positions, n = L, but of a ``SparseDenoiser`` on a CPU those that are asked about, ahead of others that
        fill up the shorter rows.
        """
        everyone = torch.arange(z.shape[1], device=z.device).expand_as(z)
        if self._split is None:
            logits = self.denoiser(z, t)
            check_logits(logits, z.shape, self.process.vocab_size)
            check_devices(logits=logits, z=z)
            return logits, everyone
        if isinstance(self._split, SparseDenoiser) and z.device.type == "cpu":
            column = asked.cumsum(1) - 1
            number = int(column.max()) + 1
            positions = asked.int().argsort(dim=1, descending=True, stable=True)[:, :number]
            features = self._split.features_at(z, t, positions)
        else:
            column, number = everyone, z.shape[1]
            features = self._split.features(z, t)
        want = (len(z), number, self._weight.shape[1])
        require(
            tuple(features.shape) == want, f"features has shape {tuple(features.shape)}, must be (B, L, D) = {want}"
        )
        check_devices(features=features, weight=self._weight, z=z)
        return features, column

    def _head(
        self, hidden: Float[Tensor, "N D"], z: Int64[Tensor, "N"], target: Int64[Tensor, "N"], force: bool
    ) -> Float[Tensor, "N V"]:
        """Logits of the words that decide where each row lands; the others' are -inf."""
        weight, bias = self._weight, self._bias
        hidden = hidden.to(weight.dtype)
        if hidden.device.type != "cpu":
            return linear(hidden, weight, bias)  # one launch over all words, not several for every cluster
        wide = torch.promote_types(weight.dtype, torch.float32)
        logits = torch.full((len(hidden), len(weight)), -torch.inf, dtype=wide, device=hidden.device)
        distinct, which = torch.stack([z, target]).unique(dim=1, return_inverse=True)
        all_words = torch.zeros_like(which, dtype=torch.bool)
        for k, (state, level) in enumerate(distinct.t().tolist()):
            words = self.process.needed_words(state, level, force)
            if words is None:
                all_words |= which == k
                continue
            mine = (which == k).nonzero()
            here = linear(hidden[mine[:, 0]], weight[words], None if bias is None else bias[words])
            logits[mine, words] = here.to(wide)
        if bool(all_words.any()):
            logits[all_words] = linear(hidden[all_words], weight, bias).to(wide)
        return logits
