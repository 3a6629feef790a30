"""Checkpoints in the authors' form with reproducible numbers, and the compared part of their
logits.

The numbers are hashes of name and index, the same on every machine, so that
``official_logits.json`` could be computed by the authors' own code on the same weights.
"""

from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    family: str
    rows: int
    tokens: int
    mask: int
    clusters: int = 0
    dim: int = 24
    depth: int = 2
    heads: int = 2
    cond_dim: int = 8

    @property
    def words(self) -> int:
        return self.mask if self.mask == self.tokens - 1 else self.tokens

    @property
    def size(self) -> dict[str, int]:
        return dict(
            rows=self.rows,
            dim=self.dim,
            depth=self.depth,
            cond_dim=self.cond_dim,
            clusters=bool(self.clusters),
        )


SMALL = dict(dim=768, depth=12, heads=12, cond_dim=128)
BASE = dict(dim=1024, depth=24, heads=16, cond_dim=128)
REDUCED = {
    "mdlm": Case("mdlm", 41, 41, 40),
    "mdlm, mask among the words": Case("mdlm", 41, 41, 5),
    "gidd of the hub": Case("gidd", 41, 41, 40, depth=3),
    "gidd in training": Case("gidd", 128, 100, 99),
    "gidd, mask among the words": Case("gidd", 128, 100, 7),
    "hdlm": Case("hdlm", 128, 90, 89, 7),
    "hdlm, mask among the words": Case("hdlm", 128, 90, 13, 7),
}
NARROW = dict(dim=16, depth=1, heads=2, cond_dim=4)
TRUE_VOCABULARY = {
    "mdlm, its vocabulary": Case("mdlm", 50258, 50258, 50257, **NARROW),
    "gidd of the hub, its vocabulary": Case("gidd", 50258, 50258, 50257, **NARROW),
    "gidd in training, its vocabulary": Case("gidd", 50304, 50259, 50258, **NARROW),
    "hdlm, its vocabulary": Case("hdlm", 50432, 50259, 50258, 64, **NARROW),
    "hdlm of lm1b, its vocabulary": Case("hdlm", 30592, 30522, 103, 64, **NARROW),
}
TRUE = {
    "mdlm small": Case("mdlm", 50258, 50258, 50257, **SMALL),
    "gidd small of the hub": Case("gidd", 50258, 50258, 50257, **SMALL),
    "gidd small in training": Case("gidd", 50304, 50259, 50258, **SMALL),
    "hdlm small, 64 clusters": Case("hdlm", 50432, 50259, 50258, 64, **SMALL),
    "hdlm small of lm1b": Case("hdlm", 30592, 30522, 103, 64, **SMALL),
}


def numbers(name: str, shape: tuple[int, ...]) -> Tensor:
    """Hashes in +-1, scaled so that activations and logits are of order 1.

    Scales of norms around 1.
    """
    index = np.arange(int(np.prod(shape)), dtype=np.uint32)
    index ^= np.uint32(crc32(name.encode()))
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        index ^= index >> np.uint32(shift)
        index *= np.uint32(factor)
    index ^= index >> np.uint32(16)
    unit = (
        torch.from_numpy((index >> np.uint32(8)).astype(np.float32))
        .mul_(2.0**-23)
        .sub_(1)
        .reshape(shape)
    )
    if "norm" in name:
        return unit.mul_(0.3).add_(1)
    return unit.mul_(1.7 * shape[-1] ** -0.5 if len(shape) > 1 and "embed" not in name else 0.5)


def shapes(
    rows: int, dim: int, depth: int, cond_dim: int, clusters: bool
) -> dict[str, tuple[int, ...]]:
    """The authors' names and shapes, in the order of their ``parameters()``."""
    found = {"vocab_embed.embedding": (rows, dim)}
    for layer, width in ((0, 256), (2, cond_dim)):
        found |= {
            f"sigma_map.mlp.{layer}.weight": (cond_dim, width),
            f"sigma_map.mlp.{layer}.bias": (cond_dim,),
        }
    for number in range(depth):
        block = {
            "norm1.weight": (dim,),
            "attn_qkv.weight": (3 * dim, dim),
            "attn_out.weight": (dim, dim),
            "norm2.weight": (dim,),
            "mlp.0.weight": (4 * dim, dim),
            "mlp.0.bias": (4 * dim,),
            "mlp.2.weight": (dim, 4 * dim),
            "mlp.2.bias": (dim,),
            "adaLN_modulation.weight": (6 * dim, cond_dim),
            "adaLN_modulation.bias": (6 * dim,),
        }
        found |= {f"blocks.{number}.{name}": shape for name, shape in block.items()}
    for head in ["output_layer", "output_layer_clusters"][: 1 + clusters]:
        found |= {
            f"{head}.norm_final.weight": (dim,),
            f"{head}.linear.weight": (rows, dim),
            f"{head}.linear.bias": (rows,),
            f"{head}.adaLN_modulation.weight": (2 * dim, cond_dim),
            f"{head}.adaLN_modulation.bias": (2 * dim,),
        }
    return found


def parameters(case: Case) -> dict[str, Tensor]:
    return {name: numbers(name, shape) for name, shape in shapes(**case.size).items()}


def buffers(case: Case, training: bool = True, length: int = 9) -> dict[str, Tensor]:
    """The rotary tables that the authors' networks carry, and GIDD's unused bonus."""
    width = case.dim // case.heads
    frequency = 1e4 ** -(torch.arange(0, width, 2) / width)
    if case.family == "mdlm":
        return {"rotary_emb.inv_freq": frequency}
    angle = (torch.arange(length)[:, None] * frequency).repeat(1, 2)[None, :, None, None]
    cos = angle.cos().repeat(1, 1, 3, 1, 1)
    sin = angle.sin().repeat(1, 1, 3, 1, 1)
    cos[:, :, 2] = 1
    sin[:, :, 2] = 0
    tables = {"rotary_emb.cos_cached": cos, "rotary_emb.sin_cached": sin}
    return tables | ({"logit_bias": torch.zeros(1, 1, 1)} if training else {})


def state(case: Case) -> dict[str, Tensor]:
    prefix = "backbone." if case.family == "mdlm" else ""
    return {prefix + name: value for name, value in (parameters(case) | buffers(case)).items()}


def inputs(case: Case) -> tuple[Tensor, Tensor]:
    """The authors' ids of two sequences: words, the mask and clusters; and two times."""
    used = case.tokens + case.clusters
    z = (numbers("inputs", (2, 9)).double().add(1).mul(used / 2).long() * 7919) % used
    z[0, 2] = z[1, 4] = case.mask
    if case.clusters:
        z[0, 5] = case.tokens
        z[1, 7] = used - 1
    return z, torch.tensor([0.15, 0.9])


def ours(z: Tensor, case: Case) -> Tensor:
    """The same states by our numbers: words, clusters, mask."""
    words = torch.where(z == case.mask, case.words + case.clusters, z)
    return torch.where(z >= case.tokens, z - case.tokens + case.words, words)


def parents(case: Case) -> Tensor:
    return torch.arange(case.words) % case.clusters


def predictable(case: Case) -> Tensor:
    """The columns of words: the mask's, if it is among them, is not compared."""
    return torch.tensor([word for word in range(case.words) if word != case.mask])


def digest(logits: Tensor) -> dict[str, float | list[float]]:
    """Some logits, and three numbers that all of them enter: their sum, their norm, a sum with
    signs.
    """
    flat = logits.double().flatten()
    signs = numbers("digest", tuple(flat.shape)).double()
    return {
        "some": flat[:: max(1, len(flat) // 23)].tolist(),
        "sum": float(flat.sum()),
        "norm": float(flat.norm()),
        "signed": float((flat * signs).sum()),
    }


def fingerprint(names_and_shapes: dict[str, tuple[int, ...]]) -> int:
    """One number for names, shapes and their order."""
    return crc32(repr([(name, tuple(shape)) for name, shape in names_and_shapes.items()]).encode())
