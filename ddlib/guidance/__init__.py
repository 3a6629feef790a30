"""Guidance: denoisers that combine other models to condition samples (STEER)."""

from ddlib.guidance.base import Guidance
from ddlib.guidance.classifier_based import ClassifierBased
from ddlib.guidance.classifier_free import ClassifierFree

__all__ = ["ClassifierBased", "ClassifierFree", "Guidance"]
