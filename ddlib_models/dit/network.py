"""DiT: a bidirectional transformer from noisy states and a time to logits over tokens."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.attention.backends import Attention, backend, owners
from ddlib_models.attention.masks import ByBlocks, within
from ddlib_models.dit.adaptive_norm import (
    AdaptiveNorm,
    FusedNorm,
    LayerNorm,
    Residual,
    modulate,
)
from ddlib_models.dit.embedding import StateEmbedding
from ddlib_models.dit.heads import ChildHead, ClusterHead, TokenHead, level_sizes, parents_of
from ddlib_models.dit.inputs import (
    InputBuilder,
    ModelInputs,
    Packing,
    Trunk,
    check_blocks,
    check_indices,
    check_memory,
)
from ddlib_models.dit.labels import Conditioned, Label, LabelEmbedding, format_label
from ddlib_models.dit.layers import (
    Block,
    MemoryInput,
    Modulation,
    Projected,
    TimeEmbedding,
    cos_sin,
    pick,
    project,
)
from ddlib_models.dit.positions import positions_of
from ddlib_models.io.pretrained import Pretrained
from ddlib_models.kv_cache import Cache, Store, check_cache
from ddlib_models.validation import check_least, check_shares, check_states
from ddlib_models.window_cache import WindowCache, check_window


def _levels(parents: Sequence[Any]) -> list[Any]:
    """Return ``parents`` as stored in config.json.

    Anything but vectors is left for the constructor to reject.
    """
    return [level.tolist() if isinstance(level, Tensor) else level for level in parents]


class DiT(Pretrained, nn.Module, coders={list: (_levels, list), tuple: (_levels, list)}):
    """Diffusion transformer (Peebles & Xie 2023) over discrete states, as in MDLM, GIDD and HDLM.

        logits(z, t) = head(modulate(norm(blocks(embedding(z))))),
        blocks and head conditioned on t through adaLN-zero

    It takes any of ``num_states`` states (tokens first, then those of the noise: clusters, a mask)
    and predicts the ``vocab_size`` tokens. The head and all gates start at zero: a fresh model
    predicts the uniform distribution over tokens. (With tied embeddings the head starts as the
    table, and only the gates at zero.)

    Sequences of any lengths can be packed into one row, ``model(z, t, cu_seqlens)`` with z (1,
    total) and one time per sequence: the logits are those of the sequences one by one.

    Times may also be one per position, t of the shape of z. Six vectors per position and layer are
    then computed, not six per sequence.

    With a ``block_size`` a position attends to its own block of so many positions and to all blocks
    before it, to none behind (block diffusion, Arriola et al. 2025, BD3-LM). Finished blocks then
    need no more work: ``prefill`` stores their keys and values, ``extend`` continues from them.
    ``model(z, t, clean=x)`` evaluates all blocks at once, each after the clean ones.

    Example:
        >>> import torch
        >>> model = DiT(num_states=12, vocab_size=10, dim=16, depth=2, heads=2)
        >>> model(torch.zeros(3, 5, dtype=torch.int64), torch.rand(3)).shape
        torch.Size([3, 5, 10])

    Args:
        num_states: number of input states, at least ``vocab_size``.
        vocab_size: number of tokens it predicts.
        dim: width; a multiple of ``heads``, with dim / heads even.
        depth: number of layers, the attribute ``blocks``.
        heads: number of attention heads.
        cond_dim: width of the time condition.
        time_conditioned: if False, ``t`` is ignored and the adaLN vectors are plain parameters, or
            depend on the label alone.
        dropout: probability on the two branches of each block.
        tied: whether the head shares its matrix with the embedding.
        pad_to: rows of embedding and head are rounded up to a multiple of this; the added ones have
            no probability.
        parents: see ``StateEmbedding``: a cluster's embedding adds the mean of its tokens.
        num_clusters: width of an auxiliary head over clusters, see ``with_clusters``; 0 for none.
        tree: None for a head over tokens. The parents of a tree, which need not be that of the
            noise, for a head over the children of its states, see ``ChildHead``: the logits are
            then (B, L, S - 1). Samplers, bound and losses then take
            ``parameterization=dd.Children.of(model)``.
        block_size: positions of a block of the sequence, counted from its beginning; the last may
            be shorter. 0: all positions attend to each other.
        num_classes: number of classes of a label that conditions the network, 0 for none. Its
            vector is added to the time condition of adaLN (Peebles & Xie 2023); the weights of
            adaLN start at zero, so a fresh model does not depend on it. See ``forward`` and
            ``with_label``.
        label_dropout: probability, in training mode, that a sequence gets the null class in place
            of its label, for classifier-free guidance (Ho & Salimans 2022). With 0 there is no null
            class: every call needs a label.
        positions: "rope": rotary positions along the sequence. "rope2d": rotary positions by row
            and column, for pictures in raster order; dim / heads is a multiple of 4. "learned": a
            vector per position, added to the embedding. See ``ddlib_models.dit.positions``.
        shape: (H, W) of the pictures for "rope2d" and "learned": every sequence has H W positions,
            with blocks also fewer, its beginning. (L,) for "learned": at most L positions. () for
            "rope".
        memory: whether calls may take the ``features`` of the previous call (self-conditioning),
            see ``MemoryInput``; a fresh model does not depend on them.
        half_residual: whether activations between the blocks have the dtype of the matrix
            products, bfloat16 under autocast, in place of that of the weights. Statistics of
            normalisations stay in float32.
        fused_norms: whether normalisation, modulation and gate of a branch are one Triton kernel
            each way. Not measured on a GPU. What its kernels do not support is computed by torch,
            see ``ddlib_models.dit.adaptive_norm.unsupported``.
        joint_modulation: whether the products of the condition with the matrices of adaLN are one
            for all blocks, where it is one per sequence. Not measured on a GPU. Not for blocks
            whose weights are sharded one by one.
        attention: a back end or its name, see ``ddlib_models.attention``.

    Raises:
        ValueError: naming the argument, its value and the rule it breaks.
        ImportError, RuntimeError: an attention back end that does not run here.
    """

    # another machine may lack the back end, and the weights do not depend on it
    unsaved = ("attention",)
    model_type = "ddlib-dit"
    unsaved_defaults = (
        "num_classes",
        "label_dropout",
        "positions",
        "shape",
        "memory",
        "half_residual",
        "fused_norms",
        "joint_modulation",
    )
    own_times = True  # ddlib.typing.OwnTimes
    # tensors without effect at first: training may start from weights without them
    initially_neutral = ("memory.",)

    def __init__(
        self,
        num_states: int,
        vocab_size: int,
        dim: int,
        depth: int,
        heads: int,
        cond_dim: int = 128,
        time_conditioned: bool = True,
        dropout: float = 0.0,
        *,
        tied: bool = False,
        pad_to: int = 1,
        parents: Sequence[Sequence[int] | Tensor] = (),
        num_clusters: int = 0,
        tree: Sequence[Sequence[int] | Tensor] | None = None,
        block_size: int = 0,
        num_classes: int = 0,
        label_dropout: float = 0.1,
        positions: str = "rope",
        shape: Sequence[int] = (),
        memory: bool = False,
        half_residual: bool = False,
        fused_norms: bool = False,
        joint_modulation: bool = False,
        attention: str | Attention = "sdpa",
    ) -> None:
        super().__init__()
        check_states(num_states, vocab_size)
        check_least(1, dim=dim, depth=depth, heads=heads, cond_dim=cond_dim, pad_to=pad_to)
        check_shares(dropout=dropout, label_dropout=label_dropout)
        check_least(0, num_clusters=num_clusters, block_size=block_size, num_classes=num_classes)
        self.num_states = num_states
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.num_classes = num_classes
        self.dim = dim
        self.time_conditioned = time_conditioned
        self.attention = backend(attention) if isinstance(attention, str) else attention
        if block_size:
            # raises before any work
            self.attention.mask_by(ByBlocks(block_size), 1, 1, torch.device("cpu"))
        condition = cond_dim if time_conditioned or num_classes else None
        clusters = sum(level_sizes(vocab_size, parents_of("tree", vocab_size, tree or ()))[1:])
        table_rows = (num_states + clusters) * tied
        self.embedding = StateEmbedding(num_states, vocab_size, dim, pad_to, parents, table_rows)
        self.time = TimeEmbedding(cond_dim) if time_conditioned else None
        self.adaptive = FusedNorm() if fused_norms else AdaptiveNorm()
        self.blocks = nn.ModuleList(
            Block(dim, heads, condition, dropout, self.attention, self.adaptive)
            for _ in range(depth)
        )
        self.norm = LayerNorm(dim)
        self.modulation = Modulation(dim, 2, condition)
        if tree is None:
            self.head = TokenHead(dim, vocab_size, num_states if tied else vocab_size, pad_to)
        else:
            self.head = ChildHead(dim, vocab_size, tree, pad_to, num_states if tied else None)
        if tied:
            self.head.weight = self.embedding.weight
        self.cluster_head = ClusterHead(dim, num_clusters, condition) if num_clusters else None
        self.labels = LabelEmbedding(num_classes, cond_dim, label_dropout) if num_classes else None
        self.positions = positions_of(positions, shape, dim, dim // heads)
        self.takes_memory = memory
        self.half_residual = half_residual
        self.joint_modulation = joint_modulation
        self.memory = MemoryInput(dim) if memory else None
        self.reader = InputBuilder(
            num_states, vocab_size, depth, dim // heads, block_size, self.attention, self.positions
        )

    def forward(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cu_seqlens: Int[Tensor, " n"] | Packing | None = None,
        *,
        clean: Int[Tensor, "B L"] | None = None,
        cache: Cache | WindowCache | None = None,
        label: Label = None,
        memory: Float[Tensor, "B L D"] | None = None,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits over tokens at every position.

        Args:
            z: noisy states in 0..num_states-1; B = 1 if sequences are packed.
            t: one time in [0, 1] per sequence, 0 = data, 1 = noise; or one per position, in the
                shape of z.
            cu_seqlens: where packed sequences begin, and the total length: 0, ..., L. Under
                ``torch.compile`` pass the result of ``pack``, computed outside the compiled region.
            clean: with blocks, the tokens of the same positions: each block of z attends to the
                clean tokens before it, at time 0, in place of the noisy ones. One pass over 2 L
                tokens replaces a pass per block.
            cache: with blocks, the tokens in front of z, from ``prefill``; or the rest, from
                ``prefill_around``.
            label: with ``num_classes``, the class of each sequence, (B,) int64, or one int for all;
                of a pack, one per packed sequence. -1 and None are the null class, i.e. no label.
            memory: with ``memory=True``, the result of ``features`` at the previous call, of other
                states and times; None, and rows of zeros, for no previous call.

        Raises:
            TypeError: a label that is neither int64 nor an int.
            ValueError: if the shapes disagree, or a CPU tensor holds a state or label out of range;
                ``clean`` without blocks; a cache of other weights, sequences, labels or dtype; more
                than one of cu_seqlens, clean and cache; a label without ``num_classes``, or none
                where ``label_dropout=0``; ``memory`` of another shape, with clean or cache, or
                without ``memory=True``.
        """
        return self.head(
            self.features(z, t, cu_seqlens, clean=clean, cache=cache, label=label, memory=memory)
        )

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
        return self._trunk(
            z, t, cu_seqlens, clean=clean, cache=cache, label=label, memory=memory
        ).features

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
        return trunk.features, self.cluster_head(trunk.x, trunk.condition, trunk.owner)

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
        return self._trunk(z, t, positions=positions, cache=cache, label=label).features

    def with_label(self, label: Label) -> Conditioned:
        """Return the denoiser ``(z, t) -> logits`` at fixed labels, for samplers, bounds and
        guidance.

        ``dd.guidance.ClassifierFree(process, model.with_label(3), model, strength)`` guides to
        class 3. With (B,) labels, one per sequence of the batch, samplers need
        ``controls=[dd.controls.WholeBatch()]``.

        Raises:
            TypeError, ValueError: as ``Conditioned``.
        """
        return Conditioned(self, label)

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
        return cache.append(x)

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
        # later writes may happen outside of that mode
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            prototype = self.embedding.weight.new_empty(0, dtype=layer.dtype)
            size = len(self.blocks), 2, *z.shape, layer.heads, self.reader.head_dim
            pairs = tuple((keys, values) for keys, values in prototype.new_empty(size))
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

    def extend(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cache: Cache | WindowCache,
        *,
        label: Label = None,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits at the positions that follow those of the cache: one or more blocks, the
        last may be shorter.

            extend(z, t, prefill(x)) = model([x z], [0 t]) behind x

        Or those at the window of the cache, see ``prefill_around``. The work per position does not
        depend on how many tokens the cache holds, except in attention to them. ``features`` and
        ``features_at`` take the cache too. The label is that of the cache.

        Raises:
            ValueError: as in ``forward``.
        """
        return self(z, t, cache=cache, label=label)

    def output_weights(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"]]:
        """Return the head's matrix and bias, so that ``forward`` is ``features(...) @ matrix.T +
        bias``.
        """
        return self.head.output_weights()

    @property
    def tree(self) -> Sequence[Int[Tensor, " n"]] | None:
        """Parents of the tree whose children the head predicts; None if it predicts tokens."""
        return self.head.tree if isinstance(self.head, ChildHead) else None

    def siblings(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"], Int[Tensor, " n"]]:
        """Return matrix, bias and rows of the head; see ``ChildHead.siblings``.

        Raises:
            ValueError: the head predicts tokens.
        """
        if not isinstance(self.head, ChildHead):
            raise ValueError(
                "tree=None: the model predicts tokens; build it with a tree to predict children"
            )
        return self.head.siblings()

    def with_clusters(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cu_seqlens: Int[Tensor, " n"] | Packing | None = None,
        *,
        clean: Int[Tensor, "B L"] | None = None,
        label: Label = None,
    ) -> tuple[Float[Tensor, "B L V"], Float[Tensor, "B L K"]]:
        """Compute the logits over tokens and those of the auxiliary head over clusters in one pass.

        Raises:
            ValueError: if the model was built without ``num_clusters``.
        """
        features, clusters = self.features_with_clusters(z, t, cu_seqlens, clean=clean, label=label)
        return self.head(features), clusters

    @torch.no_grad()
    def start_at(self, log_probs: Float[Tensor, " V"], vectors: Float[Tensor, "S D"]) -> None:
        """Initialise an untrained network at given token probabilities and state embeddings.

        The gates of the blocks, zero under adaLN-zero, start half open: a short run would spend its
        steps opening them.

        Args:
            log_probs: log-probability of each token.
            vectors: embeddings of all states.

        Raises:
            ValueError: another number of tokens, of states or of channels.
        """
        want = ((self.vocab_size,), (self.num_states, self.dim))
        if (tuple(log_probs.shape), tuple(vectors.shape)) != want:
            raise ValueError(
                f"log_probs is {tuple(log_probs.shape)}, vectors {tuple(vectors.shape)}: "
                f"expected {want[0]} and {want[1]}"
            )
        self.head.start_at(log_probs)
        self.embedding.set_vectors(vectors)
        for block in self.blocks:
            for gate in block.modulation.bias.chunk(6)[2::3]:
                gate.fill_(0.3)

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
        names = [name for name, value in options.items() if value is not None]
        if len(names) > 1:
            raise ValueError(
                f"{' and '.join(names)}: at most one of them may be given, since each gives a row "
                "another meaning"
            )
        if cache is not None:
            check_cache(cache, Cache, WindowCache)
            cache.check(self, z, self.blocks[0].attention.dtype)
        rows = len(z)
        if cu_seqlens is not None:
            packing = self.pack(cu_seqlens) if isinstance(cu_seqlens, Tensor) else cu_seqlens
            inputs = self.reader.pack(z, t, packing)
            rows = packing.num_sequences
        elif clean is not None:
            inputs = self.reader.beside(z, t, clean)
        else:
            inputs = self.reader.row(z, t, positions, cache)
        classes = self._classes(label, rows, z.device)
        if cache is not None:
            cache.check_labels(classes)
        condition = self._condition(inputs.t, classes, inputs.owner)
        x = self.positions.add_to(self.embedding(inputs.z), inputs.index)
        if memory is not None:
            check_memory(memory, x.shape, self.memory is not None, clean is None and cache is None)
            x = x + self.memory(memory)
        rotation = cos_sin(self.positions.angles(inputs.index))
        if self.half_residual:
            x = x.to(self.blocks[0].attention.dtype)
        return self.run_blocks(x, condition, rotation, inputs)

    def run_blocks(
        self, x: Tensor, condition: Tensor | None, rotation: Tensor | None, inputs: ModelInputs
    ) -> Trunk:
        """Apply all blocks and the last normalisation.

        All that depends on the width and the depth alone is in this method, so that it can be
        compiled as one graph.

        Args:
            x: embeddings of the states.
            condition: vectors that adaLN depends on.
            rotation: cosines and sines of the positions' angles.
            inputs: positions, masks and slots.
        """
        stream = Residual(x)
        *conditions, at_last, at_end = self._conditions(condition)
        *layers, (last, slot) = zip(self.blocks, inputs.slots, strict=True)
        for (layer, layer_slot), own in zip(layers, conditions, strict=True):
            stream = layer(stream, own, rotation, inputs.owner, inputs.mask, None, layer_slot)
        stream = last(
            stream, at_last, rotation, inputs.owner, inputs.last_mask, inputs.positions, slot
        )
        x = self.adaptive.total(stream)
        if condition is not None and condition.ndim == 3:
            condition = at_end = pick(condition, inputs.positions)
        features = modulate(self.norm(x), *self.modulation(at_end, inputs.owner))
        return Trunk(x, features, condition, inputs.owner)

    def _conditions(self, condition: Tensor | None) -> Sequence[Projected | Tensor | None]:
        """Return what the modulations of all blocks and of the last normalisation depend on."""
        modulations = [*(block.modulation for block in self.blocks), self.modulation]
        if self.joint_modulation and condition is not None and condition.ndim == 2:
            return project(condition, modulations)
        return [condition] * len(modulations)

    def compile_trunk(self, **options: Any) -> None:
        """Compile ``run_blocks`` as one graph, in place of a graph for each block.

        Args:
            options: those of ``torch.compile``.
        """
        compiled = torch.compile(self.run_blocks, **options)
        self.run_blocks = compiled  # type: ignore[method-assign]

    def _classes(self, label: Label, rows: int, device: torch.device) -> Int[Tensor, " n"] | None:
        """Return the row of the table of labels for each sequence.

        None for a network without classes.
        """
        if self.labels is not None:
            return self.labels.indices(label, rows, device)
        if label is not None:
            raise ValueError(
                f"label is {format_label(label)}: must be None with num_classes=0; build the "
                "model with the number of classes"
            )
        return None

    def _condition(self, t: Tensor, classes: Tensor | None, owner: Tensor | None) -> Tensor | None:
        """Compute the vectors that adaLN depends on: per sequence, or per position where
        times are.
        """
        if self.labels is None or classes is None:
            return None if self.time is None else self.time(t)
        vectors = self.labels(classes)
        if self.time is None:
            return F.silu(vectors)
        if t.ndim == 2:  # (B, 1, C), or (1, L, C) for a pack
            vectors = vectors[:, None] if owner is None else vectors[owner][None]
        return self.time(t, vectors)
