"""DiT: a bidirectional transformer from noisy states and a time to logits over words."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.layers import Block, LayerNorm, Modulation, TimeEmbedding, modulate, rotary_angles


class DiT(nn.Module):
    """Diffusion transformer (Peebles & Xie 2023) over discrete states, as in MDLM, GIDD and HDLM.

        logits(z, t) = head(modulate(norm(blocks(embedding(z))))),   blocks and head conditioned on t through adaLN-zero

    It reads any of ``num_states`` states (words first, then whatever the noise uses: clusters, a mask) and predicts the
    ``vocab_size`` words. The head and all gates start at zero: a fresh model predicts the uniform law over words.

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

    Raises:
        ValueError: naming the argument, its value and the rule it breaks.
    """

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
    ) -> None:
        super().__init__()
        sizes = {"vocab_size": vocab_size, "dim": dim, "depth": depth, "heads": heads, "cond_dim": cond_dim}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if vocab_size > num_states:
            raise ValueError(f"vocab_size={vocab_size}: words are states, so it must be <= num_states={num_states}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout={dropout}: must lie in [0, 1)")
        self.num_states, self.vocab_size, self.time_conditioned = num_states, vocab_size, time_conditioned
        condition = cond_dim if time_conditioned else None
        self.embedding = nn.Embedding(num_states, dim)
        self.time = TimeEmbedding(cond_dim) if time_conditioned else None
        self.blocks = nn.ModuleList(Block(dim, heads, condition, dropout) for _ in range(depth))
        self.norm, self.modulation = LayerNorm(dim), Modulation(dim, 2, condition)
        self.head = nn.Linear(dim, vocab_size)
        self.head_dim = dim // heads
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small normal embeddings and a zero head; the layers initialise themselves."""
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def features(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """What the head reads, so that ``forward`` is ``head(features(z, t))``; for losses that fuse the head."""
        self._check(z, t)
        condition = None if self.time is None else self.time(t)
        angles = rotary_angles(z.shape[1], self.head_dim, z.device)
        x = self.embedding(z)
        for block in self.blocks:
            x = block(x, condition, angles)
        return modulate(self.norm(x), *self.modulation(condition))

    def forward(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L V"]:
        """Logits over words at every position.

        Args:
            z: noisy states in 0..num_states-1.
            t: one time in [0, 1] per sequence, 0 = data, 1 = noise.

        Raises:
            ValueError: if the shapes disagree, or a CPU tensor holds a state out of range.
        """
        return self.head(self.features(z, t))

    def num_params(self, embeddings: bool) -> int:
        """Number of parameters; with ``embeddings=False`` without the tables that grow with the vocabulary.

        Those are the input embedding and the head's weight and bias.
        """
        total = sum(p.numel() for p in self.parameters())
        tables = self.embedding.weight.numel() + sum(p.numel() for p in self.head.parameters())
        return total if embeddings else total - tables

    def _check(self, z: Tensor, t: Tensor) -> None:
        if z.ndim != 2 or t.shape != z.shape[:1]:
            raise ValueError(f"z has shape {tuple(z.shape)}, t {tuple(t.shape)}: expected (B, L) and (B,)")
        # On an accelerator this would wait for the device at every call.
        if z.device.type == "cpu" and z.numel():
            low, high = int(z.min()), int(z.max())
            if low < 0 or high >= self.num_states:
                raise ValueError(f"z holds states {low}..{high}: must lie in 0..num_states-1={self.num_states - 1}")
