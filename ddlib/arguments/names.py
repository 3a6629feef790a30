"""The name of a class in plain values: the one it is registered under, else ``package.module:object``."""

import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points


def kind_of(cls: type) -> str:
    """The name by which ``dd.build`` finds a class, whether or not plug-ins are hidden at the moment."""
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
    """The entry points of a group, "" for all, that packages on a path declare: their metadata are read once.

    Args:
        group: such as ``ddlib.schedules``.
        path: ``sys.path``, as a tuple.
    """
    if group:
        return tuple(entry_points(group=group))
    return tuple(point for package in distributions() for point in package.entry_points)


def _loaded(point: EntryPoint) -> object:
    """What an entry point refers to; None if it does not load."""
    try:
        loaded: object = point.load()
    except Exception:  # a module of another package may raise anything when it is imported
        return None
    return loaded
