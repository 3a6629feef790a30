"""Shared parts of the papers' recipes."""

from recipes.papers.autoregressive import autoregressive_variant
from recipes.papers.blocks import block_variants
from recipes.papers.mdlm import mdlm_variant
from recipes.papers.variants import run, smoke, variants

__all__ = ["autoregressive_variant", "block_variants", "mdlm_variant", "run", "smoke", "variants"]
