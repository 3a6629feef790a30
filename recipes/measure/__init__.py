"""What a model is measured by: the bound of a corpus, and how another language model likes its samples."""

from recipes.measure.estimate import Estimate, estimates, in_units
from recipes.measure.given import given
from recipes.measure.likelihoods import read
from recipes.measure.terms import Terms, basis, measure

__all__ = ["Estimate", "Terms", "basis", "estimates", "given", "in_units", "measure", "read"]
