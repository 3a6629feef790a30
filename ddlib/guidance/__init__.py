"""Guidance: denoisers that combine other models to condition samples (STEER)."""

from ddlib.guidance.base import Guidance
from ddlib.guidance.classifier_based import ClassifierBased
from ddlib.guidance.classifier_free import ClassifierFree
from ddlib.utils.renamed import module_getattr

__all__ = ["ClassifierBased", "ClassifierFree", "Guidance"]

__getattr__ = module_getattr(__name__, {})
