"""What is there to compose: the entry points of every installed package, loaded only when asked for."""

import os
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ddlib.checks import require

GROUPS = ("schedules", "hierarchies", "processes", "samplers")
"""Kinds of plug-ins; the entry-point group of each is ``ddlib.<kind>``."""


def available(kind: str) -> dict[str, EntryPoint]:
    """Entry points of a kind by name, none of them loaded. ``DDLIB_PLUGINS=0`` hides all but ddlib's own.

    Raises:
        ValueError: unknown kind, or one name in two packages.
    """
    require(kind in GROUPS, f"kind is {kind!r}, must be one of {', '.join(GROUPS)}")
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"ddlib.{kind}"):
        if os.environ.get("DDLIB_PLUGINS") == "0" and not point.value.startswith("ddlib."):
            continue
        other = found.setdefault(point.name, point)
        require(other.value == point.value, f"{kind} {point.name!r} is both {other.value} and {point.value}")
    return dict(sorted(found.items()))


def get(kind: str, name: str) -> Any:
    """Loads the class registered under ``name``.

    Raises:
        ValueError: unknown kind or name.
        ImportError: the entry point does not load; names the package and the reason.
    """
    points = available(kind)
    require(name in points, f"no {kind} is called {name!r}, there are {', '.join(points) or 'none'}")
    point = points[name]
    try:
        return point.load()
    except Exception as error:
        raise ImportError(f"{kind} {name!r} = {point.value} does not load: {error}") from error
