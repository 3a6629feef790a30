"""Comparison of parts: the first difference of two objects or of two descriptions."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from inspect import isroutine
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddlib.config.part import Part, maker_of
from ddlib.config.plain import kind_of, path_of

_SKIPPED = frozenset(vars(nn.Module())) - {"_buffers", "_modules"} | {"_declared", "_maker"}
"""Attributes that are not compared.

Those of ``nn.Module``, parameters included, and arguments, from which the others follow.
"""


def difference(saved: Any, now: Any, path: str = "") -> str:
    """Return the first difference of two descriptions, as ``path is SAVED there, NOW here``.

    Empty if equal.
    """
    if isinstance(saved, dict) and isinstance(now, dict):
        if "kind" in saved and "kind" in now and saved["kind"] != now["kind"]:
            place = f"{path}.kind".lstrip(".")
            return f"{place} is {saved['kind']} there, {now['kind']} here"
        for name in dict.fromkeys((*now, *saved)):
            place = f"{path}.{name}".lstrip(".")
            if name not in saved or name not in now:
                one, other = (_short(values.get(name, "no argument")) for values in (saved, now))
                return f"{place} is {one} there, {other} here"
            if message := difference(saved[name], now[name], place):
                return message
        return ""
    if isinstance(saved, list) and isinstance(now, list):
        if len(saved) != len(now):
            more = max(saved, now, key=len)[min(len(saved), len(now))]
            return f"{path} has {len(saved)} entries there, {len(now)} here, with {more!r:.120}"
        pairs = enumerate(zip(saved, now, strict=True))
        return _first(difference(one, other, f"{path}[{i}]") for i, (one, other) in pairs)
    if _same(saved, now) and isinstance(saved, bool) == isinstance(now, bool):
        return ""
    return f"{path} is {_short(saved)} there, {_short(now)} here"


def rebuilt(part: Part, values: Mapping[str, Any]) -> Any:
    """Build a part of the same class from other values.

    Nested parts have the classes of those in ``part``, so no module that a file refers to is
    imported.

    Raises:
        TypeError, ValueError: values that the constructor rejects; values of parts of another kind.
    """
    maker = maker_of(part)
    if values["kind"] != kind_of(maker):
        raise TypeError(f"kind is {values['kind']}, must be {kind_of(maker)}")
    now = part.arguments()
    arguments = {name: value for name, value in values.items() if name != "kind"}
    return maker(**{name: _restore(value, now.get(name)) for name, value in arguments.items()})


def _restore(value: Any, now: Any) -> Any:
    if isinstance(now, Part):
        return rebuilt(now, value)
    if isinstance(value, list) and isinstance(now, tuple) and len(value) == len(now):
        return [_restore(one, other) for one, other in zip(value, now, strict=True)]
    if isinstance(value, dict) and isinstance(now, dict) and value.keys() == now.keys():
        return {name: _restore(one, now[name]) for name, one in value.items()}
    return now if callable(now) and value == path_of(now) else value


def apart(one: Any, other: Any, path: str = "") -> str:
    """Return the attribute path of the first bitwise difference of two objects.

    Empty if there is none. Not compared are parameters, arguments and cached values: private
    attributes that only one object has, and attributes that ``__getstate__`` leaves out.
    """
    if one is other:
        return ""
    if type(one) is not type(other):
        return path or "the class"
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return path
        pairs = enumerate(zip(one, other, strict=True))
        return _first(apart(a, b, f"{path}[{i}]") for i, (a, b) in pairs)
    entries = _entries(one)
    if entries is None:
        return "" if _same(one, other) else path
    others = _entries(other) or {}
    if isinstance(one, Part | nn.Module):
        lone = (str(name) for name in entries.keys() ^ others.keys())
        public = [name for name in lone if not name.startswith("_") and not _is_cached(one, name)]
        if public:
            return f"{path}.{min(public)}".lstrip(".")
    shared = (name for name in entries if name in others)
    return _first(
        apart(entries[name], others[name], f"{path}.{name}".lstrip(".")) for name in shared
    )


def _entries(value: Any) -> Mapping[Any, Any] | None:
    """Return the attributes of an object, or the values of a dict; None for a single value."""
    if isinstance(value, Part | nn.Module):
        state = value.__getstate__()
        fields = state if isinstance(state, dict) else vars(value)
        entries = {name: item for name, item in fields.items() if name not in _SKIPPED}
        # compare buffers and submodules by name
        return entries | dict(entries.pop("_buffers", {})) | dict(entries.pop("_modules", {}))
    if isinstance(value, dict):
        return value
    if isroutine(value) or isinstance(value, type) or not hasattr(value, "__dict__"):
        return None
    compared = any("__eq__" in vars(base) for base in type(value).__mro__[:-1])
    return None if compared else vars(value)


def _is_cached(part: Any, name: str) -> bool:
    return isinstance(getattr(type(part), name, None), cached_property)


def _first(messages: Iterable[str]) -> str:
    """Return the first message that is not empty, else an empty one."""
    return next(filter(None, messages), "")


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor | np.ndarray | float):
        return bool(one == other)
    try:
        torch.testing.assert_close(
            one, other, rtol=0, atol=0, equal_nan=True, check_device=False, check_stride=False
        )
    except (AssertionError, TypeError):
        return False
    return True


def _short(value: Any) -> str:
    text = f"a {value['kind']}" if isinstance(value, dict) and "kind" in value else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
