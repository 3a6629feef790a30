"""REVERSE: samplers that turn noise into words."""

from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Run, Sampler, State
from ddlib.samplers.confidence import Confidence
from ddlib.samplers.entropy_bounded import EntropyBounded
from ddlib.samplers.first_hitting import FirstHitting
from ddlib.samplers.loop import sample
from ddlib.samplers.overshoot import Overshoot
from ddlib.samplers.psi import Psi
from ddlib.samplers.remask import Remask

__all__ = [
    "Ancestral",
    "Confidence",
    "EntropyBounded",
    "FirstHitting",
    "Overshoot",
    "Psi",
    "Remask",
    "Run",
    "Sampler",
    "State",
    "sample",
]
