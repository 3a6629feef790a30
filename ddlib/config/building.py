"""Construction of objects from plain values."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from typing import Any

import torch

from ddlib.config import registry
from ddlib.config.part import Part
from ddlib.config.signature import REQUIRED, Key, expand, fills, keys, parameters


def read(group: str, given: Any, run: Any = None, place: str = "") -> dict[str, Any]:
    """Return the values of a part as one mapping: short strings expanded, defaults filled in, all
    values checked.

    No object is built; modules that ``kind`` refers to are imported.

    Args:
        group: group of plug-ins, one of ``registry.GROUPS``.
        given: a mapping with ``kind``, or a string.
        run: as in ``build``; its class is enough.
        place: name of the part in error messages.

    Raises:
        ValueError: lists all errors with their places: unknown keys with the closest match, missing
            keys, values of a wrong type.
        ImportError: a plug-in that does not load.
    """
    faults: list[str] = []
    values = _read(group, given, run, place or group, faults)
    if faults:
        raise ValueError("; ".join(dict.fromkeys(faults)))
    return values


def build(group: str, given: Any, run: Any = None, place: str = "") -> Any:
    """Build the object that plain values describe.

    Args:
        group: group of plug-ins, one of ``registry.GROUPS``.
        given: a mapping with ``kind``, a string, or an object of the kind, which is returned; the
            same for nested parts.
        run: an object whose methods provide values of the run. An argument with the name of a
            method is set to the method's result if it is not given and has no default or the
            default None; with another default only if its value is the string ``run``. The method's
            arguments then become keys of the part.
        place: name of the part in error messages.

    Raises:
        ValueError: as ``read``; values that the constructor rejects, with the place.
        TypeError: the function does not return an object of the kind.

    Example:
        >>> build("schedules", {"kind": "polynomial", "power": 2})
        Polynomial(power=2.0)
        >>> build("schedules", "cosine")
        Cosine()
    """
    if _is_one(group, given):
        return given
    return _build(group, read(group, given, run, place), run, place or group)


def origins(group: str, values: Mapping[str, Any], run: Any = None) -> list[registry.Origin]:
    """Return the origins of a part and the parts within it, without duplicates and without
    ddlib.
    """
    kinds = [registry.origin(group, values["kind"])]
    for key in keys(group, values["kind"], run, values).values():
        value = values.get(key.name)
        for part in _members(key, value):
            if key.group and isinstance(part, Mapping):
                kinds += origins(key.group, part, run)
        if key.function and isinstance(value, str):
            kinds.append(registry.origin(group, value))
    return [one for one in dict.fromkeys(kinds) if one.package != "ddlib"]


def _members(key: Key, value: Any) -> list[Any]:
    """Return the parts in the value of a key."""
    if key.named and isinstance(value, Mapping):
        return list(value.values())
    return value if key.many and isinstance(value, list) else [value]


def _read(group: str, given: Any, run: Any, place: str, faults: list[str]) -> Any:
    if _is_one(group, given):
        return given
    try:
        values = expand(group, given, run) if isinstance(given, str) else dict(given)
    except (TypeError, ValueError) as error:
        rule = (
            error
            if isinstance(given, str)
            else f"must be a name or a mapping with the key kind, got {given!r}"
        )
        faults.append(f"{place}: {rule}")
        return {}
    if not isinstance(values.get("kind"), str):
        faults.append(
            f"{place}.kind: is missing, must be a name that `python -m ddlib` lists or "
            "package.module:object"
        )
        return {}
    try:
        allowed = keys(group, values["kind"], run, values)
    except ValueError as error:
        faults.append(f"{place}.kind: {error}")
        return {}
    name = values["kind"] if ":" in values["kind"] else values["kind"].replace("-", "_")
    for key in values.keys() - allowed.keys() - {"kind"}:
        near = get_close_matches(str(key), allowed, 1)
        hint = f"did you mean {near[0]}?" if near else f"{name} has {', '.join(allowed) or 'none'}"
        faults.append(f"{place}.{key}: no such key; {hint}")
    result = {"kind": name}
    for key in allowed.values():
        where = f"{place}.{key.name}"
        if key.name in values:
            result[key.name] = _value(key, values[key.name], run, where, faults)
        elif key.default is REQUIRED:
            faults.append(f"{where}: is missing")
        elif key.plain:
            result[key.name] = list(key.default) if isinstance(key.default, tuple) else key.default
    return result


def _value(key: Key, value: Any, run: Any, place: str, faults: list[str]) -> Any:
    if key.named and isinstance(value, Mapping):
        return {
            name: _read(key.group or "", one, run, f"{place}.{name}", faults)
            for name, one in value.items()
        }
    if key.named:
        faults.append(f"{place}: must be a mapping of names to parts, got {value!r}")
        return None
    if key.many and isinstance(value, list | tuple):
        return [
            _read(key.group or "", one, run, f"{place}[{i}]", faults) for i, one in enumerate(value)
        ]
    if key.group and not (value is None and key.default is None):
        return _read(key.group, value, run, place, faults)
    try:
        if key.function:
            _function(value, key)
            return value
        checked = key.check(value)
    except ValueError as error:
        faults.append(f"{place}: {error}")
        return None
    return list(checked) if isinstance(checked, tuple) else checked


def _function(value: Any, key: Key) -> Any:
    """Return a value that is a function, or import it from its path.

    None if None is the default.
    """
    target = registry.at(value) if isinstance(value, str) else value
    if not (callable(target) or (target is None and key.default is None)):
        raise ValueError(f"must be a function, or package.module:object of one, got {value!r}")
    return target


def _build(group: str, values: Any, run: Any, place: str) -> Any:
    if _is_one(group, values):
        return values
    target = registry.find(group, values["kind"])
    arguments = {}
    allowed = keys(group, values["kind"], run, values)
    for name, key in allowed.items():
        if key.filled is None and name in values:
            value = values[name]
            if key.function:
                arguments[name] = _function(value, key)
            elif key.named:
                arguments[name] = {
                    each: _build(key.group or "", one, run, f"{place}.{name}.{each}")
                    for each, one in value.items()
                }
            elif key.many and isinstance(value, list):
                arguments[name] = [
                    _build(key.group or "", one, run, f"{place}.{name}[{i}]")
                    for i, one in enumerate(value)
                ]
            else:
                arguments[name] = (
                    _build(key.group, value, run, f"{place}.{name}")
                    if key.group and value
                    else value
                )
    for parameter in parameters(target):
        if parameter.name not in arguments and fills(parameter, run, values):
            names = (name for name, key in allowed.items() if key.filled == parameter.name != name)
            options = {name: values[name] for name in names if name in values}
            try:
                arguments[parameter.name] = getattr(run, parameter.name)(**options)
            except ValueError as error:
                # a run that built the part itself to find it has named the place
                where = f"{place}.{parameter.name}: "
                raise ValueError(where + str(error).removeprefix(where)) from error
    try:
        with _with_numbers(group):
            result = target(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error
    except RuntimeError as error:
        if (
            type(error) is RuntimeError
        ):  # its subclasses, such as that for memory, may have other arguments
            error.args = (
                f"{place}: {error}",
            )  # the same object: its traceback shows whether it is a refusal or a bug
        raise
    if not _is_one(group, result):
        wanted = registry.base_of(group)
        what = "callable" if wanted is None else f"a {registry.package_of(group)}.{wanted.__name__}"
        raise TypeError(f"{place}: {values['kind']} returns {result!r}, must be {what}")
    return result


def _with_numbers(group: str) -> AbstractContextManager[Any]:
    """Context manager in which the constants of a part have numbers, not only a shape.

    Models are created on meta before their weights are loaded, but files of weights contain no
    constants.
    """
    kind = registry.base_of(group)
    part = kind is not None and issubclass(kind, Part)
    on_meta = torch.get_default_device().type == "meta"
    return torch.device("cpu") if part and on_meta else nullcontext()


def _is_one(group: str, given: Any) -> bool:
    kind = registry.base_of(group)
    if kind is not None:
        return isinstance(given, kind)
    return callable(given)
