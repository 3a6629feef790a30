"""Backbones for discrete diffusion: networks that map noisy states and a time to logits over
tokens.
"""

from ddlib_models import attention
from ddlib_models.dit import DiT, FieldDiT
from ddlib_models.dit import presets as sizes
from ddlib_models.dit.heads import ChildHead
from ddlib_models.graph_transformer import GraphTransformer
from ddlib_models.io.manifest import ManifestError
from ddlib_models.io.pretrained import Pretrained

__all__ = [
    "ChildHead",
    "DiT",
    "FieldDiT",
    "GraphTransformer",
    "ManifestError",
    "Pretrained",
    "attention",
    "sizes",
]
