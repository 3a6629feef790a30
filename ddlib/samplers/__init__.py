"""REVERSE: samplers that turn noise into words, and correctors that mend what their steps did wrong."""

from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Run, Sampler, State
from ddlib.samplers.confidence import Confidence
from ddlib.samplers.corrected import Corrected
from ddlib.samplers.corrector import Corrector
from ddlib.samplers.edge_balance import EdgeBalance
from ddlib.samplers.ending import Ending, EndOfText, Settled
from ddlib.samplers.entropy_bounded import EntropyBounded
from ddlib.samplers.euler import Euler
from ddlib.samplers.first_hitting import FirstHitting
from ddlib.samplers.forward_backward import ForwardBackward
from ddlib.samplers.gibbs import Gibbs
from ddlib.samplers.left_to_right import LeftToRight
from ddlib.samplers.loop import sample
from ddlib.samplers.orders import Order
from ddlib.samplers.overshoot import Overshoot
from ddlib.samplers.particles import Particles
from ddlib.samplers.psi import Psi
from ddlib.samplers.remask import Remask
from ddlib.samplers.self_correction import SelfCorrection
from ddlib.samplers.tau_leaping import TauLeaping
from ddlib.samplers.theta_trapezoidal import ThetaTrapezoidal

__all__ = [
    "Ancestral",
    "Confidence",
    "Corrected",
    "Corrector",
    "EdgeBalance",
    "EndOfText",
    "Ending",
    "EntropyBounded",
    "Euler",
    "FirstHitting",
    "ForwardBackward",
    "Gibbs",
    "LeftToRight",
    "Order",
    "Overshoot",
    "Particles",
    "Psi",
    "Remask",
    "Run",
    "Sampler",
    "SelfCorrection",
    "Settled",
    "State",
    "TauLeaping",
    "ThetaTrapezoidal",
    "sample",
]
