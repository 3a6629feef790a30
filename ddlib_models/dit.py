"""DiT: a bidirectional transformer from noisy states and a time to logits over words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.attention import Attention, backend, owners
from ddlib_models.embedding import StateEmbedding
from ddlib_models.heads import ChildHead, ClusterHead, WordHead
from ddlib_models.layers import Block, LayerNorm, Modulation, TimeEmbedding, modulate, pick, rotary_angles
from ddlib_models.pretrained import Pretrained
from ddlib_models.tree import level_sizes, parents_of


@dataclass(frozen=True)
class Packing:
    """Sequences packed into one row: what ``DiT.pack`` makes of their offsets, once per batch."""

    num_sequences: int
    owner: Int[Tensor, " L"]
    position: Int[Tensor, " L"]
    mask: Any


@dataclass(frozen=True)
class Trunk:
    """What the heads read: activations after the last block, and what modulates them."""

    x: Float[Tensor, "B L D"]
    condition: Float[Tensor, "*batch C"] | None
    owner: Int[Tensor, " L"] | None


def _levels(parents: Sequence[Any]) -> list[Any]:
    """``parents`` as config.json holds them; what is no vector is left for the constructor to refuse."""
    return [level.tolist() if isinstance(level, Tensor) else level for level in parents]


class DiT(Pretrained, nn.Module, coders={list: (_levels, list), tuple: (_levels, list)}):
    """Diffusion transformer (Peebles & Xie 2023) over discrete states, as in MDLM, GIDD and HDLM.

        logits(z, t) = head(modulate(norm(blocks(embedding(z))))),   blocks and head conditioned on t through adaLN-zero

    It reads any of ``num_states`` states (words first, then whatever the noise uses: clusters, a mask) and predicts the
    ``vocab_size`` words. The head and all gates start at zero: a fresh model predicts the uniform law over words. (With
    tied embeddings the head starts as the table, and only the gates at zero.)

    Sequences of any lengths can be packed into one row, ``model(z, t, cu_seqlens)`` with z (1, total) and one time per
    sequence: the logits are those of the sequences one by one.

    Times may also be one per position, t of the shape of z: each position is told its own. Six vectors per position
    and block are then computed, not six per sequence.

    Example:
        >>> import torch
        >>> model = DiT(num_states=12, vocab_size=10, dim=16, depth=2, heads=2)
        >>> model(torch.zeros(3, 5, dtype=torch.int64), torch.rand(3)).shape
        torch.Size([3, 5, 10])

    Args:
        num_states: number of states it can read, at least ``vocab_size``.
        vocab_size: number of words it predicts.
        dim: width; a multiple of ``heads``, with dim / heads even.
        depth: number of blocks.
        heads: number of attention heads.
        cond_dim: width of the time condition.
        time_conditioned: if False, ``t`` is ignored and the adaLN vectors are plain parameters.
        dropout: probability on the two branches of each block.
        tied: whether the head's matrix is the table of the embedding.
        pad_to: rows of embedding and head are rounded up to a multiple of this; no probability goes there.
        parents: see ``StateEmbedding``: a cluster's embedding adds the mean of its words.
        num_clusters: width of an auxiliary head over clusters, see ``with_clusters``; 0 for none.
        tree: None for a head over words. The parents of a tree, which need not be that of the noise, for one over the
            children of its states, see ``ChildHead``: the logits are then (B, L, S - 1), as samplers, bound and losses
            are told by ``parameterization=dd.Children.of(model)``.
        attention: a back end or its name, see ``ddlib_models.attention``.

    Raises:
        ValueError: naming the argument, its value and the rule it breaks.
        ImportError, RuntimeError: an attention back end that does not run here.
    """

    unsaved = ("attention",)  # another machine may lack the back end, and the weights are the same
    model_type = "ddlib-dit"
    own_times = True  # ddlib.typing.OwnTimes

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
        attention: str | Attention = "sdpa",
    ) -> None:
        super().__init__()
        sizes = dict(vocab_size=vocab_size, dim=dim, depth=depth, heads=heads, cond_dim=cond_dim, pad_to=pad_to)
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if vocab_size > num_states:
            raise ValueError(f"vocab_size={vocab_size}: words are states, so it must be <= num_states={num_states}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout={dropout}: must lie in [0, 1)")
        if num_clusters < 0:
            raise ValueError(f"num_clusters={num_clusters}: must be at least 0")
        self.num_states, self.vocab_size = num_states, vocab_size
        self.dim, self.time_conditioned = dim, time_conditioned
        self.attention = backend(attention) if isinstance(attention, str) else attention
        condition = cond_dim if time_conditioned else None
        clusters = sum(level_sizes(vocab_size, parents_of("tree", vocab_size, tree or ()))[1:])
        self.embedding = StateEmbedding(num_states, vocab_size, dim, pad_to, parents, (num_states + clusters) * tied)
        self.time = TimeEmbedding(cond_dim) if time_conditioned else None
        self.blocks = nn.ModuleList(Block(dim, heads, condition, dropout, self.attention) for _ in range(depth))
        self.norm, self.modulation = LayerNorm(dim), Modulation(dim, 2, condition)
        if tree is None:
            self.head = WordHead(dim, vocab_size, num_states if tied else vocab_size, pad_to)
        else:
            self.head = ChildHead(dim, vocab_size, tree, pad_to, num_states if tied else None)
        if tied:
            self.head.weight = self.embedding.weight
        self.cluster_head = ClusterHead(dim, num_clusters, condition) if num_clusters else None
        self.head_dim = dim // heads

    def forward(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], cu_seqlens: Int[Tensor, " n"] | Packing | None = None
    ) -> Float[Tensor, "B L V"]:
        """Logits over words at every position.

        Args:
            z: noisy states in 0..num_states-1; B = 1 if sequences are packed.
            t: one time in [0, 1] per sequence, 0 = data, 1 = noise; or one per position, in the shape of z.
            cu_seqlens: where packed sequences begin, and the total length: 0, ..., L. Under ``torch.compile`` pass what
                ``pack`` makes of it, outside the compiled region.

        Raises:
            ValueError: if the shapes disagree, or a CPU tensor holds a state out of range.
        """
        return self.head(self.features(z, t, cu_seqlens))

    def features(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], cu_seqlens: Int[Tensor, " n"] | Packing | None = None
    ) -> Float[Tensor, "B L D"]:
        """What the head reads, so that ``forward`` is ``head(features(...))``; for losses that fuse the head."""
        return self._final(self._trunk(z, t, cu_seqlens))

    def features_at(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], positions: Int[Tensor, "B n"]
    ) -> Float[Tensor, "B n D"]:
        """``features`` at some positions of each sequence: the last block computes the others' keys and values only.

        Args:
            z: noisy states in 0..num_states-1.
            t: their times in [0, 1], (B,) or (B, L).
            positions: which, in 0..L-1, in any order.

        Raises:
            ValueError: as ``features``; ``positions`` of another number of sequences, or on a CPU out of range.
        """
        if positions.ndim != 2 or len(positions) != len(z):
            raise ValueError(f"positions has shape {tuple(positions.shape)}: expected (B, n) with B = {len(z)}")
        _check_range("positions holds", positions, z.shape[1], "L")
        return self._final(self._trunk(z, t, None, positions))

    def words(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"]]:
        """The head's matrix and bias, so that ``forward`` is ``features(...) @ matrix.T + bias``."""
        return self.head.words()

    @property
    def tree(self) -> Sequence[Int[Tensor, " n"]] | None:
        """The parents of the tree whose children the head predicts; None if it predicts words."""
        return self.head.tree if isinstance(self.head, ChildHead) else None

    def siblings(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"], Int[Tensor, " n"]]:
        """See ``ChildHead.siblings``.

        Raises:
            ValueError: the head predicts words.
        """
        if not isinstance(self.head, ChildHead):
            raise ValueError("tree=None: the model predicts words, build it with a tree to predict children")
        return self.head.siblings()

    def with_clusters(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], cu_seqlens: Int[Tensor, " n"] | Packing | None = None
    ) -> tuple[Float[Tensor, "B L V"], Float[Tensor, "B L K"]]:
        """The logits over words and those of the auxiliary head over clusters, from one pass through the blocks.

        Raises:
            ValueError: if the model was built without ``num_clusters``.
        """
        features, clusters = self.features_with_clusters(z, t, cu_seqlens)
        return self.head(features), clusters

    def features_with_clusters(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], cu_seqlens: Int[Tensor, " n"] | Packing | None = None
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L K"]]:
        """As ``with_clusters``, with ``features`` in place of the logits over words."""
        if self.cluster_head is None:
            raise ValueError("num_clusters=0: the model has no head over clusters, build it with their number")
        trunk = self._trunk(z, t, cu_seqlens)
        return self._final(trunk), self.cluster_head(trunk.x, trunk.condition, trunk.owner)

    def pack(self, cu_seqlens: Int[Tensor, " n"]) -> Packing:
        """Positions, owners and the attention mask of packed sequences; an accelerator waits for it.

        Raises:
            ValueError: unless the offsets begin at 0 and increase.
        """
        owner = owners(cu_seqlens)
        position = torch.arange(len(owner), device=owner.device) - cu_seqlens.long()[owner]
        return Packing(len(cu_seqlens) - 1, owner, position, self.attention.mask(cu_seqlens))

    @torch.no_grad()
    def start_at(self, log_law: Float[Tensor, " V"], vectors: Float[Tensor, "S D"]) -> None:
        """Lets an untrained network begin at a law of words and at embeddings of states.

        The gates of the blocks, which adaLN-zero shuts, start half open: a short run would spend itself opening them.

        Args:
            log_law: log-probability of each word.
            vectors: of all states.

        Raises:
            ValueError: another number of words, of states or of channels.
        """
        want = ((self.vocab_size,), (self.num_states, self.dim))
        if (tuple(log_law.shape), tuple(vectors.shape)) != want:
            raise ValueError(
                f"log_law is {tuple(log_law.shape)}, vectors {tuple(vectors.shape)}: expected {want[0]} and {want[1]}"
            )
        self.head.start_at(log_law)
        self.embedding.weight[: self.num_states] = vectors
        for block in self.blocks:
            for gate in block.modulation.bias.chunk(6)[2::3]:
                gate.fill_(0.3)

    def num_params(self, embeddings: bool) -> int:
        """Number of parameters; with ``embeddings=False`` of the blocks alone.

        Those are what the papers call non-embedding parameters: 92.1M for SMALL leaves out the embeddings of states and
        of time and the whole output layer.
        """
        return sum(p.numel() for p in (self if embeddings else self.blocks).parameters())

    def _final(self, trunk: Trunk) -> Tensor:
        return modulate(self.norm(trunk.x), *self.modulation(trunk.condition, trunk.owner))

    def _trunk(
        self, z: Tensor, t: Tensor, cu_seqlens: Tensor | Packing | None, positions: Tensor | None = None
    ) -> Trunk:
        packing = self.pack(cu_seqlens) if isinstance(cu_seqlens, Tensor) else cu_seqlens
        self._check(z, t, packing)
        angles = rotary_angles(z.shape[1], self.head_dim, z.device)
        owner = mask = None
        if packing is not None:
            angles, owner, mask = angles[packing.position], packing.owner, packing.mask
        condition = None if self.time is None else self.time(t)
        x = self.embedding(z)
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x, condition, angles, owner, mask)
        x = last(x, condition, angles, owner, mask, positions)
        own = condition is not None and condition.ndim == 3
        return Trunk(x, pick(condition, positions) if own else condition, owner)

    def _check(self, z: Tensor, t: Tensor, packing: Packing | None) -> None:
        if packing is None and (z.ndim != 2 or t.shape not in (z.shape[:1], z.shape)):
            raise ValueError(f"z has shape {tuple(z.shape)}, t {tuple(t.shape)}: expected (B, L) and (B,) or (B, L)")
        if packing is not None:
            total = (1, len(packing.owner))
            if z.shape != total or t.shape not in ((packing.num_sequences,), total):
                raise ValueError(
                    f"z has shape {tuple(z.shape)}, t {tuple(t.shape)}: expected {total} and "
                    f"({packing.num_sequences},) or {total}, as cu_seqlens says"
                )
        _check_range("z holds states", z, self.num_states, "num_states")


def _check_range(what: str, index: Tensor, size: int, name: str) -> None:
    # On an accelerator this would wait for the device at every call.
    if index.device.type == "cpu" and index.numel() and not torch.compiler.is_compiling():
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= size:
            raise ValueError(f"{what} {low}..{high}: must lie in 0..{name}-1={size - 1}")
