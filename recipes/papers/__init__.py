"""Shared parts of the papers' recipes."""

from recipes.papers.blocks import block_variants
from recipes.papers.variants import run, smoke, variants

__all__ = ["block_variants", "run", "smoke", "variants"]
