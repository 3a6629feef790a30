"""Trunk of a DiT: from states and times to the activations that the heads read."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ddlib_models.attention.backends import owners
from ddlib_models.attention.masks import ByBlocks, within
from ddlib_models.dit.embedding import SharedEmbedding, StateEmbedding
from ddlib_models.dit.inputs import InputBuilder, Packing, Trunk, check_blocks
from ddlib_models.dit.layers import TimeEmbedding, pick
from ddlib_models.kv_cache import Cache, Store, check_cache


class Body(nn.Module):
    """Embedding, time embedding and layers of a DiT, with packing and key/value caching; no head.

    The subclass creates these parts.
    """

    embedding: StateEmbedding | SharedEmbedding
    time: TimeEmbedding | None
    blocks: nn.ModuleList
    reader: InputBuilder

    @torch.no_grad()
    def prefill(self, x: Int[Tensor, "B L"], cache: Cache | None = None) -> Cache:
        """Compute keys and values of clean tokens, at time 0, for the tokens that follow them.

        Args:
            x: tokens, a whole number of blocks.
            cache: the cache of the tokens in front of them; None at the beginning of the sequence.

        Returns:
            The cache of all these tokens. It holds no gradients; the given cache is not changed.

        Raises:
            ValueError: without blocks, for part of a block, and as in ``forward``.
        """
        check_blocks(x, self.reader.block_size, self.reader.vocab_size)
        if cache is None:
            layer = self.blocks[0].attention
            room = self.embedding.weight.new_empty(len(self.blocks), 2, len(x), 0, layer.heads, self.reader.head_dim)
            cache = Cache(x[:, :0], Store(room.to(layer.dtype), 0), self)
        self._trunk(x, torch.zeros(len(x), device=x.device), positions=slice(0), cache=cache)
        return cache.grown(x)

    def pack(self, cu_seqlens: Int[Tensor, " n"]) -> Packing:
        """Compute positions, owners and the attention mask of packed sequences; synchronises with the accelerator.

        Raises:
            ValueError: unless the offsets begin at 0 and increase.
        """
        owner = owners(cu_seqlens)
        position = torch.arange(len(owner), device=owner.device) - cu_seqlens.long()[owner]
        if self.reader.block_size == 0:
            return Packing(len(cu_seqlens) - 1, owner, position, self.reader.attention.mask(cu_seqlens))
        rule = within(owner, position, ByBlocks(self.reader.block_size))
        mask = self.reader.attention.mask_by(rule, len(owner), len(owner), owner.device)
        return Packing(len(cu_seqlens) - 1, owner, position, mask)

    def _trunk(
        self,
        z: Tensor,
        t: Tensor,
        cu_seqlens: Tensor | Packing | None = None,
        positions: Tensor | slice | None = None,
        clean: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Trunk:
        options = dict(cu_seqlens=cu_seqlens, clean=clean, cache=cache)
        given = [name for name, value in options.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: at most one of them, in each the row means something else")
        if cache is not None:
            check_cache(cache, Cache)
            cache.check(self, z, self.blocks[0].attention.dtype)
        if cu_seqlens is not None:
            found = self.reader.packed(z, t, self.pack(cu_seqlens) if isinstance(cu_seqlens, Tensor) else cu_seqlens)
        elif clean is not None:
            found = self.reader.beside(z, t, clean)
        else:
            found = self.reader.row(z, t, positions, cache)
        condition = None if self.time is None else self.time(found.t)
        x = self.embedding(found.z)
        *layers, (last, slot) = zip(self.blocks, found.slots, strict=True)
        for layer, kept in layers:
            x = layer(x, condition, found.angles, found.owner, found.mask, None, kept)
        x = last(x, condition, found.angles, found.owner, found.last_mask, found.positions, slot)
        own = condition is not None and condition.ndim == 3
        return Trunk(x, pick(condition, found.positions) if own else condition, found.owner)
