"""Conversion of parts to plain values, for ``dd.build`` and for state dicts."""

import sys
from collections.abc import Callable
from inspect import isroutine
from typing import Any

import numpy as np
from torch import Tensor

from ddlib.arguments.names import kind_of
from ddlib.arguments.recorded import SCALARS, Opaque, Part, frozen, record


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
        TypeError: not a part; a part that was not made by its constructor; a class that is defined
            within a function; an argument that is not a plain value, such as a lambda or a network.
            The message has its path.

    Example:
        >>> import ddlib as dd
        >>> dd.values(dd.presets.mdlm(5))
        {'kind': 'masked', 'vocab_size': 5, 'schedule': {'kind': 'linear'}, 'masks': 1}
        >>> dd.build("processes", dd.values(dd.presets.mdlm(5)))
        Masked(Flat(levels=(5, 1)), Linear())
    """
    found = written(part)
    _check_places(found, type(part).__name__)
    return found


def written(part: Part) -> dict[str, Any]:
    """Like ``values``, but also accepts classes defined within a function, which ``dd.build``
    cannot find.
    """
    if not isinstance(part, Part):
        raise TypeError(f"part is {part!r}, must be a process, or a part that dd.build constructs")
    found: dict[str, Any] = _plain(part, type(part).__name__, _refused)
    return found


def described(part: Part) -> dict[str, Any]:
    """Like ``written``, but never raises: values that are not plain are replaced by their types.

    For comparison.
    """
    found: dict[str, Any] = _plain(part, "", _named)
    return found


def _named(value: Any, path: str) -> Any:
    what = (
        value.what
        if isinstance(value, Opaque)
        else "not known"
        if isinstance(value, TypeError)
        else None
    )
    return {"type": path_of(type(value)) if what is None else what}


def _refused(value: Any, path: str) -> Any:
    if isinstance(value, TypeError):
        raise value
    raise TypeError(
        f"{path} is {value.what if isinstance(value, Opaque) else repr(value)}, must be a number, "
        "a string, a list, a "
        "mapping, a part, or a function at the top level of a module: nothing else is a plain value"
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
            made = record(value).function
            arguments = value.arguments()
        except TypeError as error:
            return other(error, path)
        kind = path_of(made) if made else kind_of(type(value))
        return {"kind": kind} | {
            name: _plain(item, f"{path}.{name}", other) for name, item in arguments.items()
        }
    if type(value) in SCALARS:
        return value
    if isinstance(value, Tensor | np.generic):  # from a subclass's ``arguments``
        value = frozen(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        return value.tolist()
    if isinstance(value, list | tuple) and not isinstance(value, Opaque):
        if set(map(type, value)).issubset(SCALARS):
            return list(value)
        return [_plain(item, f"{path}[{i}]", other) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{path}.{key}", other) for key, item in value.items()}
    for base in (bool, int, float, str):  # a subclass, such as an enumeration's member
        if isinstance(value, base):
            return base(value)
    if (isroutine(value) or isinstance(value, type)) and _found(path_of(value)) is value:
        return path_of(value)
    return other(value, path)


def path_of(value: Any) -> str:
    """Return the path ``package.module:object`` of a function or class."""
    return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"


def _found(path: str) -> Any:
    """Return the object at ``package.module:object`` if its module is loaded, else None."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
