"""STEER: denoisers made of denoisers, that lean towards a condition."""

from ddlib.guidance.base import Guidance
from ddlib.guidance.classifier_based import ClassifierBased
from ddlib.guidance.classifier_free import ClassifierFree

__all__ = ["ClassifierBased", "ClassifierFree", "Guidance"]
