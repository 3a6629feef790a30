"""Names of classes in plain values: the registered name, else ``package.module:object``."""

import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points


def kind_of(cls: type) -> str:
    """Return the name by which ``dd.build`` finds a class, even if plug-ins are currently
    hidden.
    """
    return _kind_of(cls, tuple(sys.path))


@cache
def _kind_of(cls: type, path: Sequence[str]) -> str:
    package = cls.__module__.partition(".")[0]
    for point in declared("", path):
        same = point.attr == cls.__name__ and point.module.partition(".")[0] == package
        if point.group.startswith("ddlib.") and same and _loaded(point) is cls:
            return point.name
    return f"{cls.__module__}:{cls.__qualname__}"


@cache
def declared(group: str, path: Sequence[str]) -> Sequence[EntryPoint]:
    """Return the entry points of a group, that packages on a path declare; metadata are read once.

    Args:
        group: such as ``ddlib.schedules``; "" for all groups.
        path: ``sys.path``, as a tuple.
    """
    if group:
        return tuple(entry_points(group=group))
    return tuple(point for package in distributions() for point in package.entry_points)


def _loaded(point: EntryPoint) -> object:
    """Load an entry point; None if it does not load."""
    try:
        loaded: object = point.load()
    except Exception:  # a third-party module may raise anything on import
        return None
    return loaded
