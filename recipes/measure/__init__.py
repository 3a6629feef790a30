"""What a model is measured by: the bound of a corpus, and how another language model likes its samples."""

from recipes.measure.terms import Terms, measure

__all__ = ["Terms", "measure"]
