"""REVERSE: samplers that turn noise into words."""

from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Run, Sampler, State
from ddlib.samplers.euler import Euler
from ddlib.samplers.first_hitting import FirstHitting
from ddlib.samplers.loop import sample
from ddlib.samplers.psi import Psi
from ddlib.samplers.remask import Remask
from ddlib.samplers.tau_leaping import TauLeaping
from ddlib.samplers.theta_trapezoidal import ThetaTrapezoidal

__all__ = [
    "Ancestral",
    "Euler",
    "FirstHitting",
    "Psi",
    "Remask",
    "Run",
    "Sampler",
    "State",
    "TauLeaping",
    "ThetaTrapezoidal",
    "sample",
]
