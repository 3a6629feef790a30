"""Inputs of one pass through the layers: a plain row, a packed one, noisy beside clean tokens, a
window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddlib_models.attention.backends import Attention, cached_mask
from ddlib_models.attention.masks import ByBlocks
from ddlib_models.dit.positions import PositionEncoding
from ddlib_models.kv_cache import Cache, Slot
from ddlib_models.window_cache import WindowCache, WindowSlot


@dataclass(frozen=True)
class Packing:
    """Metadata of sequences packed into one row, computed by ``DiT.pack`` from their offsets once
    per batch.
    """

    num_sequences: int
    owner: Int[Tensor, " L"]
    position: Int[Tensor, " L"]
    mask: Any


@dataclass(frozen=True)
class Trunk:
    """Activations after the last layer, and the conditions of heads that modulate them."""

    x: Float[Tensor, "B L D"]
    features: Float[Tensor, "B L D"]
    """Their last normalisation, the input of the main head."""
    condition: Float[Tensor, "*batch C"] | None
    owner: Int[Tensor, " L"] | None


@dataclass(frozen=True)
class ModelInputs:
    """States and times of all tokens, their places in the sequence and masks.

    The last layer computes ``positions`` only.
    """

    z: Tensor
    t: Tensor
    index: Tensor
    slots: Sequence[Slot | WindowSlot | None]
    owner: Tensor | None = None
    mask: Any = None
    positions: Tensor | slice | None = None
    last_mask: Any = None


@dataclass(frozen=True)
class InputBuilder:
    """Builder of ``ModelInputs`` for a network of this shape."""

    num_states: int
    vocab_size: int
    depth: int
    head_dim: int
    block_size: int
    attention: Attention
    positions: PositionEncoding

    def pack(self, z: Tensor, t: Tensor, packing: Packing) -> ModelInputs:
        """Build the inputs of sequences packed into one row, separated by their owner."""
        total = (1, len(packing.owner))
        if z.shape != total or t.shape not in ((packing.num_sequences,), total):
            raise ValueError(
                f"z has shape {tuple(z.shape)}, t {tuple(t.shape)}: expected {total} and "
                f"({packing.num_sequences},), "
                "as given by cu_seqlens, or a time per position"
            )
        check_noisy(z, self.num_states)
        return ModelInputs(
            z,
            t,
            packing.position,
            [None] * self.depth,
            packing.owner,
            packing.mask,
            None,
            packing.mask,
        )

    def row(
        self,
        z: Tensor,
        t: Tensor,
        positions: Tensor | slice | None = None,
        cache: Cache | WindowCache | None = None,
    ) -> ModelInputs:
        """Build the inputs of a sequence, or of the part of one behind the tokens of the cache or
        in its window.
        """
        self._check(z, t)
        if isinstance(cache, WindowCache):
            return self._window(z, t, positions, cache)
        first = 0
        slots = [None] * self.depth
        if cache is not None:
            first = cache.length
            slots = cache.slots(z.shape[1])
        self.check_length(first + z.shape[1])
        index = torch.arange(first, first + z.shape[1], device=z.device)
        # a block that attends to everything before it needs no mask
        rule = ByBlocks(self.block_size, 0, first) if 0 < self.block_size < z.shape[1] else None
        return self._with_masks(
            ModelInputs(z, t, index, slots, positions=positions), rule, first + z.shape[1]
        )

    def _window(
        self, z: Tensor, t: Tensor, positions: Tensor | slice | None, cache: WindowCache
    ) -> ModelInputs:
        length = cache.length
        self.check_length(length)
        index = torch.arange(cache.start, cache.stop, device=z.device)
        rule = ByBlocks(self.block_size, 0, cache.start) if self.block_size else None
        return self._with_masks(
            ModelInputs(z, t, index, cache.slots(), positions=positions), rule, length
        )

    def beside(self, z: Tensor, t: Tensor, clean: Tensor) -> ModelInputs:
        """Build the inputs of noisy tokens with the clean ones, at time 0, behind them; outputs:
        the noisy ones.
        """
        self._check(z, t)
        if self.block_size == 0:
            raise ValueError(
                "clean: not with block_size=0, where all positions attend to each other; build the "
                "model with "
                "block_size above 0"
            )
        if clean.dtype != z.dtype:
            raise TypeError(
                f"clean has dtype {clean.dtype}: expected tokens, of the dtype of z, {z.dtype}"
            )
        if clean.shape != z.shape:
            raise ValueError(
                f"clean has shape {tuple(clean.shape)}: expected that of z, {tuple(z.shape)}"
            )
        check_indices("clean holds tokens", clean, self.vocab_size, "vocab_size")
        length = z.shape[1]
        if length <= self.block_size:
            return self.row(z, t)  # nothing is before the only block
        times = t if t.ndim == 2 else t[:, None].expand(z.shape)
        self.check_length(length)
        index = torch.arange(length, device=z.device).repeat(2)
        states_and_times = torch.cat([z, clean], 1), torch.cat([times, torch.zeros_like(times)], 1)
        inputs = ModelInputs(*states_and_times, index, [None] * self.depth, positions=slice(length))
        return self._with_masks(inputs, ByBlocks(self.block_size, length), 2 * length)

    def check_length(self, length: int) -> None:
        """Raise ValueError for a length that the positions do not have.

        With blocks shorter ones are prefixes.
        """
        self.positions.check_length(length, prefix=self.block_size > 0)

    def _with_masks(self, inputs: ModelInputs, rule: ByBlocks | None, keys: int) -> ModelInputs:
        """Return the inputs with their masks."""
        if rule is None:
            return inputs
        count = inputs.z.shape[1]
        device = inputs.z.device
        positions = inputs.positions
        mask = last = cached_mask(self.attention, rule, count, keys, device)
        if isinstance(positions, Tensor):
            last = self.attention.mask_by(rule, positions, keys, device)
        elif positions is not None:
            num_queries = len(range(count)[positions])
            last = (
                cached_mask(self.attention, rule, num_queries, keys, device)
                if num_queries
                else None
            )
        return ModelInputs(
            inputs.z, inputs.t, inputs.index, inputs.slots, None, mask, positions, last
        )

    def _check(self, z: Tensor, t: Tensor) -> None:
        if z.ndim != 2 or t.shape not in (z.shape[:1], z.shape):
            raise ValueError(
                f"z has shape {tuple(z.shape)}, t {tuple(t.shape)}: expected (B, L) and (B,) or "
                "(B, L)"
            )
        check_noisy(z, self.num_states)


def check_range(what: str, index: Tensor, least: int, size: int, rule: str) -> None:
    """Raise for indices outside of least..size-1.

    On a CPU only, as an accelerator would synchronise at every call.
    """
    if index.device.type == "cpu" and index.numel() and not torch.compiler.is_compiling():
        low = int(index.min())
        high = int(index.max())
        if low < least or high >= size:
            raise ValueError(f"{what} {low}..{high}: {rule}")


def check_indices(what: str, index: Tensor, size: int, name: str) -> None:
    """Raise ValueError for indices outside of 0..size-1, on a CPU."""
    check_range(what, index, 0, size, f"must lie in 0..{name}-1={size - 1}")


def check_noisy(z: Tensor, num_states: int) -> None:
    """Raise ValueError for numbers that are not states of the network, on a CPU."""
    rule = (
        f"must lie in 0..num_states-1={num_states - 1} of the network, which must be those of "
        "the process"
    )
    check_range("z holds states", z, 0, num_states, rule)


def check_blocks(x: Tensor, block_size: int, vocab_size: int) -> None:
    """Raise unless ``x`` holds tokens in whole blocks."""
    if block_size == 0 or x.ndim != 2 or x.shape[1] % block_size:
        raise ValueError(
            f"x has shape {tuple(x.shape)}, block_size={block_size}: expected (B, L) with L a "
            "multiple of block_size, "
            "which is at least 1"
        )
    check_indices("x holds tokens", x, vocab_size, "vocab_size")


def check_memory(memory: Tensor, shape: tuple[int, ...], taken: bool, plain: bool) -> None:
    """Raise ValueError for features of a previous call that the network or the call does not
    take.
    """
    if not taken:
        raise ValueError("memory: must be None with memory=False; build the model with memory=True")
    if not plain:
        raise ValueError(
            "memory: not with clean or cache, as their tokens have no features of a previous call"
        )
    if memory.shape != shape:
        raise ValueError(
            f"memory has shape {tuple(memory.shape)}: expected (B, L, D) = {tuple(shape)}, that of "
            "features"
        )
