"""Layers of a diffusion transformer: normalisation, rotary positions, time conditioning, attention,
block.

Every layer takes and returns activations (B, L, D). Precision-critical parts (norm statistics,
rotary angles, time features) are computed in float32 whatever the dtype of the weights or of an
enclosing autocast; float64 stays float64.

Where several sequences are packed into one row, B is 1, ``owner`` is the index of the sequence of
each position, and ``mask`` is the attention mask that the back end built to separate them.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.attention.backends import SDPA, Attention
from ddlib_models.dit.adaptive_norm import AdaptiveNorm, LayerNorm, Residual, widen
from ddlib_models.kv_cache import Slot
from ddlib_models.window_cache import WindowSlot


def dtype_of(layer: nn.Linear) -> torch.dtype:
    """Return the dtype that a linear layer computes in at present, which an enclosing autocast may
    set.
    """
    return layer(layer.weight.new_empty(0, layer.in_features)).dtype


class MemoryInput(nn.Module):
    r"""Features of the previous call as a further input, :math:`W\, \mathrm{norm}(h)`.

    W is zero at the start.

    Self-conditioning (Chen et al. 2022, arXiv 2208.04202) by features in place of probabilities
    (arXiv 2510.19304). There is no bias, so rows of zeros add nothing: a sequence without a
    previous call.

    Shapes: (B, L, D) -> (B, L, D).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = LayerNorm(dim)
        self.weight = nn.Parameter(torch.zeros(dim, dim))

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return F.linear(self.norm(h), self.weight)


def rotary_angles(
    length: int, head_dim: int, device: torch.device, base: float = 1e4, first: int = 0
) -> Float[Tensor, "L half"]:
    """Angle in radians of every position (row) in every plane (column): position * base^(-2 k /
    head_dim).

    Computed for the length at hand, from position ``first`` on, so there is no maximum length.
    """
    return turns(torch.arange(first, first + length, device=device), head_dim, base)


def turns(place: Int[Tensor, " L"], width: int, base: float = 1e4) -> Float[Tensor, "L half"]:
    """Angle in radians of every place (row) in every plane (column): place * base^(-2 k / width), k
    < width / 2.
    """
    exponent = torch.arange(0, width, 2, device=place.device, dtype=torch.float32) / width
    return place.to(torch.float32)[:, None] * base**-exponent


def cos_sin(angles: Float[Tensor, "L half"] | None) -> Float[Tensor, "2 L half"] | None:
    """Compute the cosines and sines of all positions, once for all blocks; None for no angles."""
    return None if angles is None else torch.stack([angles.cos(), angles.sin()])


def rotate(
    x: Float[Tensor, "B L H K"], rotation: Float[Tensor, "2 L half"] | None
) -> Float[Tensor, "B L H K"]:
    """Turn queries or keys by the angles of their positions, half-split.

    Dimensions k and k + K/2 form a plane.

    Args:
        x: queries or keys.
        rotation: ``cos_sin`` of the angles; None leaves ``x`` as it is.
    """
    if rotation is None:
        return x
    cos, sin = rearrange(rotation, "part l half -> part l 1 half")
    first, second = widen(x).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class TimeEmbedding(nn.Module):
    """Sinusoidal features of t in [0, 1], then a two-layer MLP: (B,) -> (B, C), or (B, L) -> (B, L,
    C).

    The features are cos and sin of t * 10^(-4 k / half), k < half, the ones MDLM, GIDD and HDLM
    use. The vectors of labels, if given, are added before the last nonlinearity, as in DiT (Peebles
    & Xie 2023): silu(mlp(t) + e(label)).
    """

    def __init__(self, cond_dim: int, num_features: int = 256) -> None:
        super().__init__()
        self.num_frequencies = num_features // 2
        self.mlp = nn.Sequential(
            nn.Linear(num_features, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim)
        )

    def forward(
        self, t: Float[Tensor, "*batch"], labels: Tensor | None = None
    ) -> Float[Tensor, "*batch C"]:
        exponent = (
            torch.arange(self.num_frequencies, device=t.device, dtype=torch.float32)
            / self.num_frequencies
        )
        phase = t.float()[..., None] * torch.exp(-math.log(1e4) * exponent)
        features = torch.cat([phase.cos(), phase.sin()], dim=-1)
        condition = self.mlp(features.to(self.mlp[0].weight.dtype))
        return F.silu(condition if labels is None else condition + labels)


class Projected(NamedTuple):
    """Product of the conditions of N sequences with the matrix of one ``Modulation``."""

    vectors: Float[Tensor, "N n"]


class Modulation(nn.Module):
    """Adaptive-norm parameters: ``num`` vectors of width D per sequence, all zero at the start
    (adaLN-zero).

    With ``cond_dim=None`` there is no condition: the vectors are plain parameters, the same for
    every sequence.

    Shapes: condition (N, C) of N sequences -> num tensors (N, 1, D), or (1, L, D) with the
        ``owner`` (L,) of each
    position of a pack; condition (B, L, C) of each position -> (B, L, D); condition None -> (1, 1,
    D).
    """

    def __init__(self, dim: int, num: int, cond_dim: int | None) -> None:
        super().__init__()
        self.num = num
        self.bias = nn.Parameter(torch.zeros(num * dim))
        self.weight = None if cond_dim is None else nn.Parameter(torch.zeros(num * dim, cond_dim))

    def forward(
        self,
        condition: Float[Tensor, "*batch C"] | Projected | None,
        owner: Int[Tensor, " L"] | None = None,
    ) -> tuple[Tensor, ...]:
        if self.weight is None or condition is None:
            vectors = self.bias[None, None]
        elif isinstance(condition, Projected):
            vectors = condition.vectors
        else:
            vectors = F.linear(condition, self.weight, self.bias)
        if vectors.ndim == 2:
            vectors = vectors[:, None] if owner is None else vectors[owner][None]
        return vectors.chunk(self.num, dim=-1)


def project(condition: Float[Tensor, "N C"], modulations: Sequence[Modulation]) -> list[Projected]:
    """Compute the products of conditions with the matrices of several modulations as one."""
    weight = torch.cat([one.weight for one in modulations if one.weight is not None])
    bias = torch.cat([one.bias for one in modulations])
    sizes = [len(one.bias) for one in modulations]
    return [Projected(part) for part in F.linear(condition, weight, bias).split(sizes, -1)]


def pick(
    x: Float[Tensor, "B L *batch"], positions: Int[Tensor, "B n"] | slice | None
) -> Float[Tensor, "B n *batch"]:
    """Select some positions of each sequence, in the given order.

    Those of a slice; all of them for None.
    """
    if isinstance(positions, slice):
        return x[:, positions]
    return x if positions is None else x[torch.arange(len(x), device=x.device)[:, None], positions]


def pick_per_position(vectors: Tensor, positions: Int[Tensor, "B n"] | slice | None) -> Tensor:
    """Apply ``pick`` to vectors per position; vectors shared by a sequence, (B, 1, D), stay."""
    return vectors if vectors.shape[1] == 1 else pick(vectors, positions)


class SelfAttention(nn.Module):
    """Bidirectional multi-head self-attention with rotary positions: (B, L, D) -> (B, L, D).

    With ``positions`` (B, n), or a slice, it computes only their outputs, (B, n, D), with attention
    to all positions. With a ``slot`` it also attends to the positions whose keys and values are
    stored there.

    Raises:
        ValueError: if ``dim`` is not a multiple of ``heads`` or the head's width is odd.
    """

    def __init__(self, dim: int, heads: int, attend: Attention | None = None) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim}, heads={heads}: dim must be a positive multiple of heads")
        if dim // heads % 2:
            raise ValueError(
                f"dim/heads={dim // heads}: rotary positions rotate pairs of dimensions, so it "
                "must be even"
            )
        self.heads = heads
        self.attend = attend or SDPA()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    @property
    def dtype(self) -> torch.dtype:
        """Current dtype of queries, keys and values."""
        return dtype_of(self.qkv)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        rotation: Float[Tensor, "2 L half"] | None,
        mask: Any = None,
        positions: Int[Tensor, "B n"] | slice | None = None,
        slot: Slot | WindowSlot | None = None,
    ) -> Float[Tensor, "B n D"]:
        q, k, v = rearrange(self.qkv(x), "b l (three h k) -> three b l h k", three=3, h=self.heads)
        q = pick(rotate(q, rotation), positions)
        k = rotate(k, rotation)
        if slot is not None:
            k, v = slot.join(k, v)
        y = self.attend(q, k, v, mask) if q.shape[1] else q  # not all back ends accept zero queries
        return self.out(rearrange(y, "b l h k -> b l (h k)"))


class GELU(nn.GELU):
    """GELU by tanh; in place where no gradient needs its input, which is the widest tensor of a
    block.
    """

    def __init__(self) -> None:
        super().__init__(approximate="tanh")

    def forward(self, x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return (
            super().forward(x)
            if torch.is_grad_enabled()
            else torch.ops.aten.gelu_(x, approximate=self.approximate)
        )


class Block(nn.Module):
    """Pre-norm transformer block.

    Both branches are shifted, scaled and gated by the time condition.

    The gates start at zero, so a fresh block is the identity. With ``positions`` (B, n), or a
    slice, everything but keys and values is computed there only; for ``slot`` see
    ``SelfAttention``.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        cond_dim: int | None,
        dropout: float = 0.0,
        attend: Attention | None = None,
        adaptive: AdaptiveNorm | None = None,
    ) -> None:
        super().__init__()
        self.adaptive = adaptive or AdaptiveNorm()
        self.norm1 = LayerNorm(dim)
        self.attention = SelfAttention(dim, heads, attend)
        self.norm2 = LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), GELU(), nn.Linear(4 * dim, dim))
        self.modulation = Modulation(dim, 6, cond_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        stream: Residual,
        condition: Float[Tensor, "*batch C"] | Projected | None,
        rotation: Float[Tensor, "2 L half"] | None,
        owner: Int[Tensor, " L"] | None = None,
        mask: Any = None,
        positions: Int[Tensor, "B n"] | slice | None = None,
        slot: Slot | WindowSlot | None = None,
    ) -> Residual:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition, owner)
        x, h = self.adaptive.normalise(self.norm1, stream, shift1, scale1)
        y = self.dropout(self.attention(h, rotation, mask, positions, slot))
        gate1, shift2, scale2, gate2 = (
            pick_per_position(each, positions) for each in (gate1, shift2, scale2, gate2)
        )
        stream = Residual(pick(x, positions), gate1, y)
        x, h = self.adaptive.normalise(self.norm2, stream, shift2, scale2)
        return self.adaptive.add(x, gate2, self.dropout(self.mlp(h)))
