"""Trunk of a DiT: from states, times and labels to the activations that the heads read."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.attention.backends import owners
from ddlib_models.attention.masks import ByBlocks, within
from ddlib_models.dit.checks import check_blocks, check_indices, check_memory
from ddlib_models.dit.embedding import StateEmbedding
from ddlib_models.dit.heads import ClusterHead
from ddlib_models.dit.inputs import InputBuilder, Packing, Trunk
from ddlib_models.dit.labels import Label, LabelEmbedding, shown
from ddlib_models.dit.layers import (
    LayerNorm,
    MemoryInput,
    Modulation,
    TimeEmbedding,
    modulate,
    pick,
)
from ddlib_models.dit.positions import Positions
from ddlib_models.kv_cache import Cache, Store, check_cache
from ddlib_models.window_cache import WindowCache, check_window


class Body(nn.Module):
    """Embedding, condition and layers of a DiT, with packing and key/value caching.

    No head over tokens.

    The subclass creates these parts.
    """

    embedding: StateEmbedding
    time: TimeEmbedding | None
    labels: LabelEmbedding | None
    blocks: nn.ModuleList
    norm: LayerNorm
    modulation: Modulation
    cluster_head: ClusterHead | None
    positions: Positions
    memory: MemoryInput | None
    reader: InputBuilder

    def features(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cu_seqlens: Int[Tensor, " n"] | Packing | None = None,
        *,
        clean: Int[Tensor, "B L"] | None = None,
        cache: Cache | WindowCache | None = None,
        label: Label = None,
        memory: Float[Tensor, "B L D"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Compute the head's input, so that ``forward`` is ``head(features(...))``.

        For losses that fuse the head.
        """
        return self._final(
            self._trunk(z, t, cu_seqlens, clean=clean, cache=cache, label=label, memory=memory)
        )

    def features_with_clusters(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cu_seqlens: Int[Tensor, " n"] | Packing | None = None,
        *,
        clean: Int[Tensor, "B L"] | None = None,
        label: Label = None,
        memory: Float[Tensor, "B L D"] | None = None,
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L K"]]:
        """Compute ``features`` and the logits of the auxiliary head over clusters in one pass."""
        if self.cluster_head is None:
            raise ValueError(
                "num_clusters=0: the model has no head over clusters; build it with the number of "
                "clusters"
            )
        trunk = self._trunk(z, t, cu_seqlens, clean=clean, label=label, memory=memory)
        return self._final(trunk), self.cluster_head(trunk.x, trunk.condition, trunk.owner)

    def features_at(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        positions: Int[Tensor, "B n"],
        *,
        cache: Cache | WindowCache | None = None,
        label: Label = None,
    ) -> Float[Tensor, "B n D"]:
        """Compute ``features`` at some positions.

        The last layer computes only keys and values of the others.

        Args:
            z: noisy states in 0..num_states-1.
            t: their times in [0, 1], (B,) or (B, L).
            positions: indices in 0..L-1, in any order.
            cache: see ``DiT.forward``.
            label: see ``DiT.forward``.

        Raises:
            ValueError: as in ``features``; ``positions`` of another number of sequences, or on a
                CPU out of range.
        """
        if positions.ndim != 2 or len(positions) != len(z):
            raise ValueError(
                f"positions has shape {tuple(positions.shape)}: expected (B, n) with B = {len(z)}"
            )
        check_indices("positions holds", positions, z.shape[1], "L")
        return self._final(self._trunk(z, t, positions=positions, cache=cache, label=label))

    @torch.no_grad()
    def prefill(
        self, x: Int[Tensor, "B L"], cache: Cache | None = None, *, label: Label = None
    ) -> Cache:
        """Compute keys and values of clean tokens, at time 0, for the tokens that follow them.

        Args:
            x: tokens, a whole number of blocks.
            cache: the cache of the tokens in front of them; None at the beginning of the sequence.
            label: see ``DiT.forward``; the cache is for this label.

        Returns:
            The cache of all these tokens. It holds no gradients; the given cache is not changed.

        Raises:
            ValueError: without blocks, for part of a block, and as in ``forward``.
        """
        check_blocks(x, self.reader.block_size, self.reader.vocab_size)
        if cache is None:
            layer = self.blocks[0].attention
            empty = self.embedding.weight.new_empty(
                len(self.blocks), 2, len(x), 0, layer.heads, self.reader.head_dim
            )
            cache = Cache(
                x[:, :0],
                Store(empty.to(layer.dtype), 0),
                self,
                self._classes(label, len(x), x.device),
            )
        self._trunk(
            x, torch.zeros(len(x), device=x.device), positions=slice(0), cache=cache, label=label
        )
        return cache.grown(x)

    @torch.no_grad()
    def prefill_around(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        start: int,
        stop: int,
        *,
        label: Label = None,
    ) -> WindowCache:
        """Compute keys and values of the positions around a window, for other states in it.

            extend(z[:, start:stop], t[:, start:stop], prefill_around(z, t, start, stop))
                = model(z, t)  in the window

        For other states or times of the window, ``extend`` is approximate. The cached keys and
        values are those that the states and times of this call gave; with attention to all
        positions they would change with the window.

        Args:
            z: states in 0..num_states-1 of the full sequence.
            t: their times in [0, 1], (B,) or (B, L).
            start: first position of the window.
            stop: first position behind it.
            label: see ``DiT.forward``; the cache is for this label.

        Raises:
            ValueError: no window of z, and as in ``forward``.
        """
        check_window(z, start, stop)
        layer = self.blocks[0].attention
        labels = self._classes(label, len(z), z.device)
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # later writes may happen outside of that mode
            like = self.embedding.weight.new_empty(0, dtype=layer.dtype)
            size = len(self.blocks), 2, *z.shape, layer.heads, self.reader.head_dim
            pairs = tuple((keys, values) for keys, values in like.new_empty(size))
        # a window of all positions fills them
        self._trunk(
            z, t, positions=slice(0), cache=WindowCache(z, self, 0, z.shape[1], pairs), label=label
        )
        return WindowCache(z, self, start, stop, pairs, labels=labels)

    def pack(self, cu_seqlens: Int[Tensor, " n"]) -> Packing:
        """Compute positions, owners and the attention mask of packed sequences.

        Synchronises with the accelerator.

        Raises:
            ValueError: unless the offsets begin at 0 and increase; a sequence whose length is not
                that of the shape.
        """
        owner = owners(cu_seqlens)
        for length in set(cu_seqlens.diff().tolist()):
            self.reader.check_length(length)
        position = torch.arange(len(owner), device=owner.device) - cu_seqlens.long()[owner]
        if self.reader.block_size == 0:
            return Packing(
                len(cu_seqlens) - 1, owner, position, self.reader.attention.mask(cu_seqlens)
            )
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
        cache: Cache | WindowCache | None = None,
        label: Label = None,
        memory: Tensor | None = None,
    ) -> Trunk:
        options = dict(cu_seqlens=cu_seqlens, clean=clean, cache=cache)
        given = [name for name, value in options.items() if value is not None]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)}: at most one of them may be given, since each gives a row "
                "another meaning"
            )
        if cache is not None:
            check_cache(cache, Cache, WindowCache)
            cache.check(self, z, self.blocks[0].attention.dtype)
        rows = len(z)
        if cu_seqlens is not None:
            packing = self.pack(cu_seqlens) if isinstance(cu_seqlens, Tensor) else cu_seqlens
            found = self.reader.packed(z, t, packing)
            rows = packing.num_sequences
        elif clean is not None:
            found = self.reader.beside(z, t, clean)
        else:
            found = self.reader.row(z, t, positions, cache)
        classes = self._classes(label, rows, z.device)
        if cache is not None:
            cache.check_labels(classes)
        condition = self._condition(found.t, classes, found.owner)
        x = self.positions.added(self.embedding(found.z), found.index)
        if memory is not None:
            check_memory(memory, x.shape, self.memory is not None, clean is None and cache is None)
            x = x + self.memory(memory)
        angles = self.positions.angles(found.index)
        *layers, (last, slot) = zip(self.blocks, found.slots, strict=True)
        for layer, kept in layers:
            x = layer(x, condition, angles, found.owner, found.mask, None, kept)
        x = last(x, condition, angles, found.owner, found.last_mask, found.positions, slot)
        own = condition is not None and condition.ndim == 3
        return Trunk(x, pick(condition, found.positions) if own else condition, found.owner)

    def _classes(self, label: Label, rows: int, device: torch.device) -> Int[Tensor, " n"] | None:
        """Return the row of the table of labels for each sequence.

        None for a network without classes.
        """
        if self.labels is not None:
            return self.labels.indices(label, rows, device)
        if label is not None:
            raise ValueError(
                f"label is {shown(label)}: must be None with num_classes=0; build the model with "
                "the number of classes"
            )
        return None

    def _condition(self, t: Tensor, classes: Tensor | None, owner: Tensor | None) -> Tensor | None:
        """Compute the vectors that adaLN depends on.

        Per sequence, or per position where times are.
        """
        if self.labels is None or classes is None:
            return None if self.time is None else self.time(t)
        vectors = self.labels(classes)
        if self.time is None:
            return F.silu(vectors)
        if t.ndim == 2:  # (B, 1, C), or (1, L, C) for a pack
            vectors = vectors[:, None] if owner is None else vectors[owner][None]
        return self.time(t, vectors)

    def _final(self, trunk: Trunk) -> Float[Tensor, "B L D"]:
        return modulate(self.norm(trunk.x), *self.modulation(trunk.condition, trunk.owner))
