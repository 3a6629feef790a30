"""Parts that the core does not need: public, registered and tested as those of the core.

The core never imports this package. Their names in recipes are those of the entry points.
"""

from ddlib.contrib.batcher import Batcher, Session, sample_together
from ddlib.contrib.caches import Cache
from ddlib.contrib.captured import Captured, CaptureError
from ddlib.contrib.checkerboard import Checkerboard
from ddlib.contrib.consistency import bridge, consistency_loss
from ddlib.contrib.constraints.automaton import Automaton
from ddlib.contrib.constraints.constraint import Constraint
from ddlib.contrib.filmed import Event, Film, Filmed, Frame, Mark
from ddlib.contrib.fixed_capacity.control import FixedCapacity
from ddlib.contrib.halton import Halton
from ddlib.contrib.lanes import Lanes
from ddlib.contrib.leave_one_out import Probe, leave_one_out_probe
from ddlib.contrib.lengths.base import Length
from ddlib.contrib.lengths.canvas import Canvas
from ddlib.contrib.lengths.daedal import Daedal
from ddlib.contrib.lengths.rho_eos import RhoEOS
from ddlib.contrib.order_costs import OrderCosts, order_costs
from ddlib.contrib.overshoot import Overshoot
from ddlib.contrib.psi import Psi
from ddlib.contrib.theta_trapezoidal import ThetaTrapezoidal
from ddlib.contrib.training_rows import TrainingRows

__all__ = [
    "Automaton",
    "Batcher",
    "Cache",
    "Canvas",
    "CaptureError",
    "Captured",
    "Checkerboard",
    "Constraint",
    "Daedal",
    "Event",
    "Film",
    "Filmed",
    "FixedCapacity",
    "Frame",
    "Halton",
    "Lanes",
    "Length",
    "Mark",
    "OrderCosts",
    "Overshoot",
    "Probe",
    "Psi",
    "RhoEOS",
    "Session",
    "ThetaTrapezoidal",
    "TrainingRows",
    "bridge",
    "consistency_loss",
    "leave_one_out_probe",
    "order_costs",
    "sample_together",
]
