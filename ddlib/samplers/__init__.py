"""Reverse-time samplers, which turn noise into tokens, and correctors, which repair errors of their
steps.
"""

from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Guarantees, Sampler, SamplingContext, State
from ddlib.samplers.confidence import Confidence
from ddlib.samplers.constraints import Automaton
from ddlib.samplers.correctors.base import Corrector
from ddlib.samplers.correctors.corrected import Corrected
from ddlib.samplers.correctors.edge_balance import EdgeBalance
from ddlib.samplers.correctors.forward_backward import ForwardBackward
from ddlib.samplers.correctors.gibbs import Gibbs
from ddlib.samplers.correctors.self_correction import SelfCorrection
from ddlib.samplers.entropy_bounded import EntropyBounded
from ddlib.samplers.first_hitting import FirstHitting
from ddlib.samplers.in_order import InOrder
from ddlib.samplers.left_to_right import LeftToRight
from ddlib.samplers.lengths import Daedal, Length, RhoEOS
from ddlib.samplers.ordered import OrderedSampler
from ddlib.samplers.overshoot import Overshoot
from ddlib.samplers.particles import Particles
from ddlib.samplers.psi import Psi
from ddlib.samplers.rate_based import Euler, TauLeaping
from ddlib.samplers.remask import Remask
from ddlib.samplers.sampling import sample
from ddlib.samplers.stopping import Ending, EndOfText, Settled
from ddlib.samplers.theta_trapezoidal import ThetaTrapezoidal
from ddlib.samplers.time_grid import equal_jump_times

__all__ = [
    "Ancestral",
    "Automaton",
    "Confidence",
    "Corrected",
    "Corrector",
    "Daedal",
    "EdgeBalance",
    "EndOfText",
    "Ending",
    "EntropyBounded",
    "Euler",
    "FirstHitting",
    "ForwardBackward",
    "Gibbs",
    "Guarantees",
    "InOrder",
    "LeftToRight",
    "Length",
    "OrderedSampler",
    "Overshoot",
    "Particles",
    "Psi",
    "Remask",
    "RhoEOS",
    "Sampler",
    "SamplingContext",
    "SelfCorrection",
    "Settled",
    "State",
    "TauLeaping",
    "ThetaTrapezoidal",
    "equal_jump_times",
    "sample",
]
