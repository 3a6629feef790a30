"""REVERSE: samplers that turn noise into words."""

from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Run, Sampler, State
from ddlib.samplers.first_hitting import FirstHitting
from ddlib.samplers.loop import sample
from ddlib.samplers.psi import Psi
from ddlib.samplers.remask import Remask

__all__ = ["Ancestral", "FirstHitting", "Psi", "Remask", "Run", "Sampler", "State", "sample"]
