"""Noise schedules: the probability alpha(t) that a token has not jumped yet (WHEN tokens jump)."""

from typing import TYPE_CHECKING, Any

from ddlib.schedules.base import Schedule
from ddlib.schedules.cosine import Cosine
from ddlib.schedules.geometric import Geometric
from ddlib.schedules.linear import Linear
from ddlib.schedules.polynomial import Polynomial
from ddlib.schedules.window import Window
from ddlib.utils.imports import import_quietly

if TYPE_CHECKING:
    from ddlib.schedules.occupancies import Occupancies
    from ddlib.schedules.rate import Rate
    from ddlib.schedules.symbolic import Symbolic

_LAZY = {"Occupancies": "occupancies", "Rate": "rate", "Symbolic": "symbolic"}

__all__ = [
    "Cosine",
    "Geometric",
    "Linear",
    "Occupancies",
    "Polynomial",
    "Rate",
    "Schedule",
    "Symbolic",
    "Window",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import the classes of formulas on first access, since they import sympy, which takes a while
    to load.
    """
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_quietly(f"ddlib.schedules.{_LAZY[name]}"), name)
