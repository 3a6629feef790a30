"""Kinds of parts that ``dd.verify`` checks: base class and claims."""

from typing import Any, NamedTuple

from ddlib.contrib import Length
from ddlib.guidance import Guidance
from ddlib.hierarchies import Hierarchy
from ddlib.paces import Pace
from ddlib.processes import ForwardProcess, Product
from ddlib.samplers import Corrector, Sampler
from ddlib.schedules import Schedule
from ddlib.times import TimeDensity
from ddlib.weightings import Weighting


class Kind(NamedTuple):
    """A kind of part that ``dd.verify`` checks."""

    base: type[Any]
    """Base class, with ``examples()``."""
    claims: str
    """Module in ``ddlib.verification.claims`` whose ``verify(subject, full)`` returns the checks of
    an object and a
    note. It is imported on demand, since claims import sympy."""


KINDS = {
    "schedules": Kind(Schedule, "schedule"),
    "hierarchies": Kind(Hierarchy, "hierarchy"),
    "products": Kind(Product, "products"),
    "processes": Kind(ForwardProcess, "processes"),
    "times": Kind(TimeDensity, "objective.times"),
    "paces": Kind(Pace, "objective.paces"),
    "samplers": Kind(Sampler, "samplers"),
    "correctors": Kind(Corrector, "samplers.corrector"),
    "lengths": Kind(Length, "samplers.length"),
    "weightings": Kind(Weighting, "objective.weighting"),
    "guidance": Kind(Guidance, "samplers.guidance"),
}
"""All kinds by name, a subclass before its base.

A new kind is a line here, and a module of claims.

Its classes are plug-ins if it is a line in ``ddlib.config.registry`` too.
"""
