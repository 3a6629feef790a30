"""What the recipes of the papers share."""

from recipes.papers.blocks import block_variants
from recipes.papers.variants import run, smoke, variants

__all__ = ["block_variants", "run", "smoke", "variants"]
