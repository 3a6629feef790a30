"""Conversion of parts to plain values, for ``dd.build`` and for state dicts."""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from inspect import isroutine
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddlib.config.part import Part, maker_of

_SCALARS = (type(None), bool, int, float, str)


def values(part: Part) -> dict[str, Any]:
    """Return the plain values of a part, from which ``dd.build`` makes the same part, bit for bit.

    They are ``kind`` and every argument of the constructor, defaults included; nested parts are
    mappings of the same form. For learned parameters (``process.parameters()``) they contain the
    initial values; the current values are in ``process.state_dict()``.

    Args:
        part: a process, schedule, hierarchy, density of times, pace, sampler, corrector or
            weighting.

    Returns:
        Numbers, strings, None, lists and mappings, as supported by JSON and YAML.

    Raises:
        TypeError: not a part; a part that does not store an argument of its constructor; a class
            that is defined within a function; an argument that is not a plain value, such as a
            lambda or a network. The message has its path.

    Example:
        >>> import ddlib as dd
        >>> dd.values(dd.presets.mdlm(5))
        {'kind': 'masked', 'vocab_size': 5, 'schedule': {'kind': 'linear'}, 'masks': 1}
        >>> dd.build("processes", dd.values(dd.presets.mdlm(5)))
        Masked(Flat(levels=(5, 1)), Linear())
    """
    plain = write_values(part)
    _check_places(plain, type(part).__name__)
    return plain


def write_values(part: Part) -> dict[str, Any]:
    """Like ``values``, but also accepts classes defined within a function, which ``dd.build``
    cannot find.
    """
    if not isinstance(part, Part):
        raise TypeError(f"part is {part!r}, must be a process, or a part that dd.build constructs")
    plain: dict[str, Any] = _plain(part, type(part).__name__, _refuse)
    return plain


def describe(part: Part) -> dict[str, Any]:
    """Like ``written``, but never raises: values that are not plain are replaced by their types.

    For comparison.
    """
    plain: dict[str, Any] = _plain(part, "", lambda value, path: {"type": path_of(type(value))})
    return plain


def kind_of(maker: Callable[..., Any]) -> str:
    """Return the name of a class or function in plain values: registered, or
    ``package.module:object``.

    Registered names are found even if plug-ins are currently hidden.
    """
    return _kind_of(maker, tuple(sys.path))


@cache
def _kind_of(maker: Callable[..., Any], path: Sequence[str]) -> str:
    package = maker.__module__.partition(".")[0]
    for point in declarations("", path):
        same = point.attr == maker.__name__ and point.module.partition(".")[0] == package
        if point.group.startswith("ddlib.") and same and _load(point) is maker:
            return point.name
    return path_of(maker)


@cache
def declarations(group: str, path: Sequence[str]) -> Sequence[EntryPoint]:
    """Return the entry points of a group, that packages on a path declare; metadata are read once.

    Args:
        group: such as ``ddlib.schedules``; "" for all groups.
        path: ``sys.path``, as a tuple.
    """
    if group:
        return tuple(entry_points(group=group))
    return tuple(point for package in distributions() for point in package.entry_points)


def _load(point: EntryPoint) -> object:
    """Load an entry point; None if it does not load."""
    try:
        loaded: object = point.load()
    except Exception:  # a third-party module may raise anything on import
        return None
    return loaded


def path_of(value: Any) -> str:
    """Return the path ``package.module:object`` of a function or class."""
    return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"


def _refuse(value: Any, path: str) -> Any:
    if isinstance(value, TypeError):
        raise value
    raise TypeError(
        f"{path} is {value!r}, must be a number, a string, a list, a mapping, a part, or a "
        "function at the top level of a module: nothing else is a plain value"
    )


def _check_places(value: Any, path: str) -> None:
    if isinstance(value, dict):
        kind = value.get("kind")
        if isinstance(kind, str) and "<locals>" in kind:
            raise TypeError(
                f"{path} is {kind}, must be at the top level of a module: dd.build cannot find it"
            )
        for name, item in value.items():
            _check_places(item, f"{path}.{name}")


def _plain(value: Any, path: str, other: Callable[[Any, str], Any]) -> Any:
    if isinstance(value, Part):
        try:
            arguments = value.arguments()
        except TypeError as error:
            return other(error, path)
        items = arguments.items()
        plain = {name: _plain(item, f"{path}.{name}", other) for name, item in items}
        return {"kind": kind_of(maker_of(value))} | plain
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Tensor) and not value.is_meta and value.layout is torch.strided:
        value = value.detach().cpu().tolist()
    if isinstance(value, np.generic) or (
        isinstance(value, np.ndarray) and value.dtype.kind in "biufU"
    ):
        return value.tolist()
    if isinstance(value, list | tuple):
        if set(map(type, value)).issubset(_SCALARS):
            return list(value)
        return [_plain(item, f"{path}[{i}]", other) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{path}.{key}", other) for key, item in value.items()}
    if isinstance(value, PurePath):
        return str(value)
    for base in (bool, int, float, str):  # a subclass, such as an enumeration's member
        if isinstance(value, base):
            return base(value)
    if (isroutine(value) or isinstance(value, type)) and _import(path_of(value)) is value:
        return path_of(value)
    return other(value, path)


def _import(path: str) -> Any:
    """Return the object at ``package.module:object`` if its module is loaded, else None."""
    module, _, name = path.partition(":")
    target: Any = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    return target
