"""What is there to compose: the entry points of every installed package, loaded only when asked for."""

import os
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ddlib.checks import require
from ddlib.hierarchies import Hierarchy
from ddlib.processes import ForwardProcess
from ddlib.samplers import Sampler
from ddlib.schedules import Schedule

_BASES = {"schedules": Schedule, "hierarchies": Hierarchy, "processes": ForwardProcess, "samplers": Sampler}

GROUPS = tuple(_BASES)
"""Kinds of plug-ins; the entry-point group of each is ``ddlib.<kind>``."""


def available(kind: str) -> dict[str, EntryPoint]:
    """Entry points of a kind by name, none of them loaded. ``DDLIB_PLUGINS=0`` hides all but ddlib's own.

    Of a name that two packages claim, one entry point is given here; ``get`` refuses it.

    Raises:
        ValueError: unknown kind.
    """
    return {name: points[0] for name, points in sorted(_claims(kind).items())}


def get(kind: str, name: str) -> Any:
    """Loads the class registered under ``name``, and no other.

    Raises:
        ValueError: unknown kind or name.
        ImportError: two packages claim the name, or the entry point does not load or is no class of its kind; names
            the packages and the reason.
    """
    claims = _claims(kind)
    require(name in claims, _missing(kind, name, list(claims)))
    point, *others = claims[name]
    if others:
        packages = " and ".join(f"{_package(p)} ({p.value})" for p in (point, *others))
        raise ImportError(
            f"{kind} {name!r} is claimed by {packages}: uninstall all but one, or set DDLIB_PLUGINS=0 for ddlib's own"
        )
    origin = f"{kind} {name!r} = {point.value}, from {_package(point)},"
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # whatever a stranger's module does when imported
        raise ImportError(f"{origin} does not load: {type(error).__name__}: {error}") from error
    base = _BASES[kind]
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise ImportError(f"{origin} is {loaded!r}, must be a subclass of ddlib.{kind}.{base.__name__}")
    return loaded


def _claims(kind: str) -> dict[str, list[EntryPoint]]:
    """Entry points by name, several where packages disagree."""
    require(kind in GROUPS, f"kind is {kind!r}, must be one of {', '.join(GROUPS)}")
    claims: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=f"ddlib.{kind}"):
        if _plugins() or point.value.startswith("ddlib."):
            same = claims.setdefault(point.name, [])
            if point.value not in (other.value for other in same):
                same.append(point)
    return claims


def _plugins() -> bool:
    return os.environ.get("DDLIB_PLUGINS") != "0"


def _missing(kind: str, name: str, names: list[str]) -> str:
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names)) or 'none'}"
    return f"nothing in {kind} is called {name!r}, {hint}" + ("" if _plugins() else " (DDLIB_PLUGINS=0 hides plug-ins)")


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown package"
