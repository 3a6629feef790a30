"""REVERSE: samplers that turn noise into words."""

from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Run, Sampler, State
from ddlib.samplers.first_hitting import FirstHitting
from ddlib.samplers.loop import sample

__all__ = ["Ancestral", "FirstHitting", "Run", "Sampler", "State", "sample"]
