"""Reverse-time samplers, which turn noise into tokens, and correctors, which repair errors of their
steps.
"""

from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State
from ddlib.samplers.correctors.base import Corrector
from ddlib.samplers.correctors.corrected import Corrected
from ddlib.samplers.correctors.edge_balance import EdgeBalance
from ddlib.samplers.correctors.forward_backward import ForwardBackward
from ddlib.samplers.correctors.gibbs import Gibbs
from ddlib.samplers.correctors.self_correction import SelfCorrection
from ddlib.samplers.first_hitting import FirstHitting
from ddlib.samplers.ordered import Ordered
from ddlib.samplers.orders import Confidence, EntropyBounded, InOrder, LeftToRight
from ddlib.samplers.particles import Particles
from ddlib.samplers.rate_based import Euler, TauLeaping
from ddlib.samplers.remask import Remask
from ddlib.samplers.requirements import UnsupportedError
from ddlib.samplers.time_grid import equal_jump_times
from ddlib.samplers.trajectory import Trajectory

__all__ = [
    "Ancestral",
    "Confidence",
    "Corrected",
    "Corrector",
    "EdgeBalance",
    "EntropyBounded",
    "Euler",
    "FirstHitting",
    "ForwardBackward",
    "Gibbs",
    "Guarantees",
    "InOrder",
    "LeftToRight",
    "Ordered",
    "Particles",
    "Remask",
    "Sampler",
    "SamplingContext",
    "SelfCorrection",
    "State",
    "TauLeaping",
    "Trajectory",
    "UnsupportedError",
    "equal_jump_times",
]
