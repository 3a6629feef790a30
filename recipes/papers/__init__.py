"""What the recipes of the papers share."""

from recipes.papers.variants import run, smoke, variants

__all__ = ["run", "smoke", "variants"]
