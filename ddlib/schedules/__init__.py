"""Noise schedules: the probability alpha(t) that a token has not jumped yet (WHEN tokens jump)."""

from typing import TYPE_CHECKING, Any

from ddlib.schedules.base import Schedule
from ddlib.schedules.cosine import Cosine
from ddlib.schedules.geometric import Geometric
from ddlib.schedules.linear import Linear
from ddlib.schedules.polynomial import Polynomial

if TYPE_CHECKING:
    from ddlib.schedules.symbolic import Symbolic

__all__ = ["Cosine", "Geometric", "Linear", "Polynomial", "Schedule", "Symbolic"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import ``Symbolic`` on first access, since it imports sympy, which takes a while to load."""
    if name != "Symbolic":
        raise AttributeError(f"module 'ddlib.schedules' has no attribute {name!r}")
    from ddlib.schedules.symbolic import Symbolic

    return Symbolic
