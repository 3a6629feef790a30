"""Normalisation, modulation and gate of a block's branches: by torch, or in one pass on a GPU."""

from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

INSTALLED = find_spec("triton") is not None
WIDEST = 4096
"""Largest width whose rows the kernels hold in registers."""
DTYPES = torch.float32, torch.bfloat16, torch.float16


def widen(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return the tensor in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class LayerNorm(nn.Module):
    """Layer normalisation with a scale and no bias; statistics in float32 or better.

    Shapes: (..., D) -> (..., D), in the dtype of the input.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        x_float32 = widen(x)
        return F.layer_norm(x_float32, self.weight.shape, self.weight.to(x_float32.dtype)).to(
            x.dtype
        )


def modulate(x: Float[Tensor, "B L D"], shift: Tensor, scale: Tensor) -> Float[Tensor, "B L D"]:
    """x * (1 + scale) + shift."""
    return torch.addcmul(shift.to(x.dtype), x, 1 + scale.to(x.dtype))


class Residual(NamedTuple):
    """Activations x + gate y between branches; a y is added where they are read next."""

    x: Float[Tensor, "B L D"]
    gate: Tensor | None = None
    y: Float[Tensor, "B L D"] | None = None


class AdaptiveNorm:
    """Sums of activations and gated branches, and their modulated normalisation, by torch.

    Vectors are (B, 1, D) per sequence, (1, 1, D) for all, or (B, L, D) per position.
    """

    def add(self, x: Float[Tensor, "B L D"], gate: Tensor, y: Float[Tensor, "B L D"]) -> Residual:
        """Return the activations behind a branch, added at once."""
        return Residual(self.total(Residual(x, gate, y)))

    def total(self, stream: Residual) -> Float[Tensor, "B L D"]:
        """Compute x + gate y."""
        x, gate, y = stream
        if gate is None or y is None:
            return x
        return torch.addcmul(x, gate.to(x.dtype), y.to(x.dtype))

    def normalise(
        self, norm: LayerNorm, stream: Residual, shift: Tensor, scale: Tensor
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L D"]]:
        """Compute x' = x + gate y, and norm(x') (1 + scale) + shift."""
        x = self.total(stream)
        return x, modulate(norm(x), shift, scale)


class FusedNorm(AdaptiveNorm):
    """The same by Triton kernels, one pass each way for a branch with the normalisation after it;
    by torch for what ``unsupported`` names.

    Everything between the reads and the writes is float32, so with activations in half precision
    results differ by roundings. The normalisation has the dtype of the products.
    """

    def add(self, x: Float[Tensor, "B L D"], gate: Tensor, y: Float[Tensor, "B L D"]) -> Residual:
        return Residual(x, gate, y)

    def normalise(
        self, norm: LayerNorm, stream: Residual, shift: Tensor, scale: Tensor
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L D"]]:
        x, gate, y = stream
        if unsupported(x, shift, scale, *([] if gate is None else [gate])):
            return super().normalise(norm, stream, shift, scale)
        from ddlib_models.dit.norm_kernels import adaptive_norm  # imports Triton

        following, h, *_ = adaptive_norm(x, y, gate, norm.weight, shift, scale, _dtype(x))
        return x if y is None else following, h


def unsupported(x: Float[Tensor, "B L D"], *vectors: Tensor) -> str:
    """Return why the kernels do not support these activations and vectors; empty if they do."""
    if not INSTALLED:
        return "the kernels need Triton, which is not installed"
    if x.dtype not in DTYPES:
        return f"dtype {x.dtype}: the kernels compute in float32"
    if x.shape[-1] > WIDEST:
        return f"width {x.shape[-1]}: the kernels hold rows of at most {WIDEST}"
    if any(vector.shape[1] != 1 for vector in vectors):
        return "vectors per position: the kernels sum gradients over the positions of a sequence"
    if x.device.type != "cuda":
        return f"device {x.device}: the kernels need CUDA"
    return ""


def _dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of products with these activations."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
