"""Metrics of a model: the bound of a corpus, and the generative perplexity of its samples."""

from recipes.metrics.bound import Terms, basis, measure
from recipes.metrics.conditioned import with_tokens
from recipes.metrics.estimate import Estimate, bits, by_field, by_label, estimates, in_units
from recipes.metrics.likelihood import read
from recipes.metrics.references import Alphabets, References, unigram

__all__ = [
    "Alphabets",
    "Estimate",
    "References",
    "Terms",
    "basis",
    "bits",
    "by_field",
    "by_label",
    "estimates",
    "in_units",
    "measure",
    "read",
    "unigram",
    "with_tokens",
]
