"""Backbones for discrete diffusion: networks that map noisy states and a time to logits over words."""

import os

if os.environ.get("DDLIB_SHAPECHECK", "0") not in ("", "0"):
    import ddlib  # noqa: F401  puts the checks of ddlib.shapecheck on the modules imported below

from ddlib_models import attention, sizes
from ddlib_models.dit import DiT
from ddlib_models.heads import ChildHead
from ddlib_models.manifest import ManifestError
from ddlib_models.pretrained import Pretrained

__all__ = ["ChildHead", "DiT", "ManifestError", "Pretrained", "attention", "sizes"]
