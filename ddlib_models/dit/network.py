"""DiT: a bidirectional transformer from noisy states and a time to logits over tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.attention.backends import Attention, backend
from ddlib_models.attention.masks import ByBlocks
from ddlib_models.dit.checks import check_least, check_shares, check_states
from ddlib_models.dit.embedding import StateEmbedding
from ddlib_models.dit.heads import ChildHead, ClusterHead, TokenHead
from ddlib_models.dit.inputs import InputBuilder, Packing
from ddlib_models.dit.labels import Conditioned, Label, LabelEmbedding
from ddlib_models.dit.layers import Block, LayerNorm, MemoryInput, Modulation, TimeEmbedding
from ddlib_models.dit.positions import positions_of
from ddlib_models.dit.tree_head import level_sizes, parents_of
from ddlib_models.dit.trunk import Body
from ddlib_models.io.pretrained import Pretrained
from ddlib_models.kv_cache import Cache
from ddlib_models.window_cache import WindowCache


def _levels(parents: Sequence[Any]) -> list[Any]:
    """Return ``parents`` as stored in config.json.

    Anything but vectors is left for the constructor to reject.
    """
    return [level.tolist() if isinstance(level, Tensor) else level for level in parents]


class DiT(Pretrained, Body, coders={list: (_levels, list), tuple: (_levels, list)}):
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
            ``conditioned``.
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
        attention: a back end or its name, see ``ddlib_models.attention``.

    Raises:
        ValueError: naming the argument, its value and the rule it breaks.
        ImportError, RuntimeError: an attention back end that does not run here.
    """

    unsaved = (
        "attention",
    )  # another machine may lack the back end, and the weights do not depend on it
    model_type = "ddlib-dit"
    unsaved_defaults = ("num_classes", "label_dropout", "positions", "shape", "memory")
    own_times = True  # ddlib.typing.OwnTimes
    initially_neutral = (
        "memory.",
    )  # tensors without effect at first: training may start from weights without them

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
            self.attention.mask_by(
                ByBlocks(block_size), 1, 1, torch.device("cpu")
            )  # raises before any work
        condition = cond_dim if time_conditioned or num_classes else None
        clusters = sum(level_sizes(vocab_size, parents_of("tree", vocab_size, tree or ()))[1:])
        table_rows = (num_states + clusters) * tied
        self.embedding = StateEmbedding(num_states, vocab_size, dim, pad_to, parents, table_rows)
        self.time = TimeEmbedding(cond_dim) if time_conditioned else None
        self.blocks = nn.ModuleList(
            Block(dim, heads, condition, dropout, self.attention) for _ in range(depth)
        )
        self.norm, self.modulation = LayerNorm(dim), Modulation(dim, 2, condition)
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

    def conditioned(self, label: Label) -> Conditioned:
        """Return the denoiser ``(z, t) -> logits`` at fixed labels, for samplers, bounds and
        guidance.

        ``dd.guidance.ClassifierFree(process, model.conditioned(3), model, strength)`` guides to
        class 3. With (B,) labels, one per sequence of the batch, samplers need
        ``controls=[dd.controls.WholeBatch()]``.

        Raises:
            TypeError, ValueError: as ``Conditioned``.
        """
        return Conditioned(self, label)

    def extend(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cache: Cache | WindowCache,
        *,
        label: Label = None,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits at the positions that follow those of the cache.

        One or more blocks, the last may be shorter.

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
