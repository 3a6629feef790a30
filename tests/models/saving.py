"""Helpers of the tests of saving: a user's module, functions that compare and damage files."""

import torch
from torch import nn

from ddlib_models import Pretrained

SAVED = ["README.md", "config.json", "ddlib_manifest.json", "model.safetensors"]


class Small(Pretrained, nn.Module):
    def __init__(
        self,
        dim: int,
        names: tuple[str, ...] = ("a",),
        options: dict | None = None,
        scale: float = 1 / 3,
    ):
        super().__init__()
        self.linear = nn.Linear(dim, len(names))
        self.options = options.pop("kind") if options else None
        self.register_buffer("scale", torch.tensor(scale), persistent=False)


def same(ours: nn.Module, theirs: nn.Module) -> bool:
    """True if all tensors are equal in bits, dtype and name."""
    pairs = zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True)
    return all(a == b and x.dtype == y.dtype and torch.equal(x, y) for (a, x), (b, y) in pairs)


def flip(folder, name="model.safetensors", position=-1):
    content = bytearray((folder / name).read_bytes())
    content[position] ^= 1
    (folder / name).write_bytes(content)
