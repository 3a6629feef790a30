"""Comparison of parts: the first difference of two objects or of two descriptions."""

import math
from collections.abc import Mapping
from functools import cached_property
from inspect import isfunction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddlib.arguments.names import kind_of
from ddlib.arguments.plain import path_of
from ddlib.arguments.recorded import Part, record

_OWN = frozenset(vars(nn.Module())) - {"_buffers", "_modules"} | {"_record"}
"""Attributes that are not compared.

Those of ``nn.Module``, parameters included, and the record of the arguments.
"""


def difference(saved: Any, now: Any, path: str = "") -> str:
    """Return the first difference of two descriptions, as ``path is SAVED there, NOW here``.

    Empty if equal.
    """
    if isinstance(saved, dict) and isinstance(now, dict):
        kinds = [values["kind"] for values in (saved, now) if "kind" in values]
        if len(kinds) == 2 and kinds[0] != kinds[1]:
            return f"{path}.kind".lstrip(".") + f" is {kinds[0]} there, {kinds[1]} here"
        for name in dict.fromkeys((*now, *saved)):
            if name == "kind":
                continue
            place = f"{path}.{name}" if path else name
            if name not in saved or name not in now:
                one, other = (_short(values.get(name, "no argument")) for values in (saved, now))
                return f"{place} is {one} there, {other} here"
            if found := difference(saved[name], now[name], place):
                return found
        return ""
    if isinstance(saved, list) and isinstance(now, list):
        if len(saved) != len(now):
            return f"{path} has {len(saved)} entries there, {len(now)} here"
        pairs = zip(saved, now, strict=True)
        return next(
            (
                found
                for i, (a, b) in enumerate(pairs)
                if (found := difference(a, b, f"{path}[{i}]"))
            ),
            "",
        )
    same = saved == now or (_nan(saved) and _nan(now))
    return (
        ""
        if same and isinstance(saved, bool) == isinstance(now, bool)
        else (f"{path} is {_short(saved)} there, {_short(now)} here")
    )


def rebuilt(part: Part, values: Mapping[str, Any]) -> Any:
    """Build a part of the same class from other values.

    Nested parts have the classes of those in ``part``.

    So no module that a file refers to is imported.

    Raises:
        TypeError, ValueError: values that the constructor rejects; values of parts of another kind.
    """
    now = part.arguments()
    made = record(part).function
    make = made or type(part)
    kind = path_of(made) if made else kind_of(type(part))
    if values["kind"] != kind:
        raise TypeError(f"kind is {values['kind']}, must be {kind}")
    return make(
        **{
            name: _restored(value, now.get(name))
            for name, value in values.items()
            if name != "kind"
        }
    )


def _restored(value: Any, now: Any) -> Any:
    if isinstance(now, Part):
        if not isinstance(value, Mapping):
            raise TypeError(
                f"{value!r} must be a mapping with the arguments of a {type(now).__name__}"
            )
        return rebuilt(now, value)
    if (
        isinstance(value, list)
        and isinstance(now, tuple)
        and any(isinstance(item, Part) for item in now)
    ):
        return [_restored(a, b) for a, b in zip(value, now, strict=True)]
    placeholder = isinstance(value, Mapping) and ("kind" in value or value.keys() == {"type"})
    if placeholder and not isinstance(now, dict):
        raise TypeError(f"{value!r} must be a plain value")
    if callable(now) and isinstance(value, str) and value == path_of(now):
        return now
    return value


def apart(
    one: Any, other: Any, path: str = "", seen: frozenset[tuple[int, int]] = frozenset()
) -> str:
    """Return the attribute path of the first bitwise difference of two objects.

    Empty if there is none.

    Not compared are parameters and cached values: private attributes that only one object has, and
    attributes that ``__getstate__`` leaves out. Functions are equal if their code, defaults and
    closures are.
    """
    if (id(one), id(other)) in seen or one is other:
        return ""
    seen = seen | {(id(one), id(other))}
    if type(one) is not type(other):
        return path or "the class"
    if isinstance(one, Tensor | np.ndarray):
        return "" if _equal(one, other) else path
    if isinstance(one, dict) and not isinstance(one, nn.Module):
        return _first({k: (one[k], other[k]) for k in one if k in other}, path, seen)
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return path
        return _first(dict(enumerate(zip(one, other, strict=True))), path, seen)
    if isinstance(one, Part | nn.Module):
        fields, other_fields = (
            {k: v for k, v in _held(part).items() if k not in _OWN} for part in (one, other)
        )
        for group in ("_buffers", "_modules"):  # compare the entries by name
            fields |= dict(fields.pop(group, {}))
            other_fields |= dict(other_fields.pop(group, {}))
        lone = {k for k in fields.keys() ^ other_fields.keys() if not k.startswith("_")}
        lone -= {k for k in lone if isinstance(getattr(type(one), k, None), cached_property)}
        if lone:
            return f"{path}.{min(lone)}".lstrip(".")
        return _first(
            {k: (fields[k], other_fields[k]) for k in fields if k in other_fields}, path, seen
        )
    if isfunction(one):
        cells = [tuple(cell.cell_contents for cell in f.__closure__ or ()) for f in (one, other)]
        same = one.__code__ == other.__code__ and one.__defaults__ == other.__defaults__
        return apart(cells[0], cells[1], path, seen) if same else path
    compares = isinstance(one, type) or any(
        "__eq__" in vars(base) for base in type(one).__mro__[:-1]
    )
    if hasattr(one, "__dict__") and not compares:
        return _first(
            {k: (vars(one)[k], vars(other)[k]) for k in vars(one) if k in vars(other)}, path, seen
        )
    return "" if one == other or (_nan(one) and _nan(other)) else path


def _held(part: Any) -> dict[str, Any]:
    """Return the attributes of an object that are copied with it, i.e. without caches."""
    state = part.__getstate__()
    return state if isinstance(state, dict) else vars(part)


def _first(
    pairs: Mapping[Any, tuple[Any, Any]], path: str, seen: frozenset[tuple[int, int]]
) -> str:
    for name, (one, other) in pairs.items():
        place = f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}".lstrip(".")
        if found := apart(one, other, place, seen):
            return found
    return ""


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.is_meta or other.is_meta:
        return True
    one = one.detach().cpu()
    other = other.detach().cpu()
    return bool(torch.equal(one, other) or torch.equal(one.nan_to_num(0.5), other.nan_to_num(0.5)))


def _nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _short(value: Any) -> str:
    text = f"a {value['kind']}" if isinstance(value, dict) and "kind" in value else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
