"""Base class of objects that record their constructor arguments."""

import inspect
from abc import ABCMeta
from collections.abc import Callable, KeysView, Mapping, Sequence, ValuesView
from contextlib import nullcontext
from functools import cache
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

SCALARS = (type(None), bool, int, float, str)
"""Scalar types of plain values."""


class Record(NamedTuple):
    """The call that made an object."""

    function: Callable[..., Any] | None
    """The function that was called; None for the constructor of the object's class."""
    args: tuple[Any, ...]
    """Positional arguments: tensors as arrays, parts unchanged, see ``frozen``."""
    kwargs: dict[str, Any]


class Opaque(NamedTuple):
    """Placeholder for an argument that cannot be recorded."""

    what: str


class Recorded(ABCMeta):
    """Metaclass of ``Part`` that records the arguments of each constructor call.

    Subclasses need no code for it, and the constructor may use its arguments in any way: the
    recorded arguments make the object again. An object made by ``__new__`` alone has no record.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(
                False
            ):  # autograd never takes tensors that are created in inference mode
                return cls(*args, **kwargs)
        # before the constructor, which may modify its arguments
        made = Record(
            None, tuple(map(frozen, args)), {name: frozen(value) for name, value in kwargs.items()}
        )
        on_meta = torch.get_default_device().type == "meta"
        # models are created on meta before their weights are loaded, but files of weights contain
        # no constants
        with torch.device("cpu") if on_meta else nullcontext():
            part = super().__call__(*args, **kwargs)
        return _kept(part, made) if type(part) is cls else part

    @property
    def __signature__(cls) -> inspect.Signature:
        """Signature of the constructor; ``__call__`` above would hide it."""
        return _signature(cls)


class Part(metaclass=Recorded):
    """Base class of objects that plain values describe.

    Processes, their components, and samplers.
    """

    def arguments(self) -> Mapping[str, Any]:
        """Return the constructor arguments by name, defaults included.

        Override if they are not plain values.

        Raises:
            TypeError: the object was not made by its constructor.
        """
        made = record(self)
        return dict(made.kwargs) if made.function is not None else _bound(type(self), made)

    def _finish(self) -> None:
        """Hook that is called after the constructor."""


def record(part: Part) -> Record:
    """Return the record of the call that made an object.

    Raises:
        TypeError: the object was not made by its constructor, so there is no record.
    """
    found = vars(part).get("_record")
    if not isinstance(found, Record):
        name = type(part).__name__
        raise TypeError(
            f"{name} was not created by its constructor, so its arguments are not recorded: create "
            f"it by {name}(...)"
        )
    return found


def made_by(part: Any, function: Callable[..., Any], **arguments: Any) -> Any:
    """Record that a function at the top level of a module made ``part``; return ``part``.

    This is for objects that are not made by calling their class. ``dd.build`` calls the function
    again with the same arguments.
    """
    return _kept(
        part, Record(function, (), {name: frozen(value) for name, value in arguments.items()})
    )


def frozen(value: Any) -> Any:
    """Copy an argument, so that later changes of it have no effect.

    Parts are returned as they are.
    """
    if isinstance(value, Tensor):
        if value.is_meta:
            return Opaque("tensor on meta")
        held = value.detach().cpu()
        exact = held.to(torch.float64) if held.dtype in (torch.bfloat16, torch.float16) else held
        try:
            return np.array(exact.numpy())
        except (RuntimeError, TypeError):  # a sparse one, for instance
            return Opaque(f"a {value.layout} tensor of {value.dtype}")
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, list | tuple | range):
        plain = set(map(type, value)).issubset(SCALARS)
        return tuple(value) if plain else tuple(map(frozen, value))
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, Part | type | str | bytes):
        return value
    if isinstance(
        value, Sequence | KeysView | ValuesView
    ):  # array.array, deque; no iterator, which this would exhaust
        return tuple(map(frozen, value))
    if callable(getattr(value, "tolist", None)):  # arrays of other libraries
        return frozen(value.tolist())
    return value


def _kept(part: Any, made: Record) -> Any:
    if hasattr(part, "__dict__"):
        part.__dict__["_record"] = made  # bypasses __setattr__, which frozen classes forbid
    part._finish()
    return part


def _bound(cls: type, made: Record) -> dict[str, Any]:
    """Return the constructor arguments by name."""
    signature = _signature(cls)
    given = signature.bind(*made.args, **made.kwargs)
    given.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in given.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            found[name] = value
        elif value:
            found[name] = Opaque(f"*{name}")
    return found


@cache
def _signature(cls: type) -> inspect.Signature:
    """Return the signature of the first constructor in the method resolution order."""
    for base in cls.__mro__[:-1]:
        for name in ("__init__", "__new__"):
            if name in vars(base):
                whole = inspect.signature(getattr(base, name))
                return whole.replace(
                    parameters=list(whole.parameters.values())[1:], return_annotation=whole.empty
                )
    return inspect.Signature()
