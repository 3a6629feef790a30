"""A base class whose objects keep the arguments of their constructor."""

import inspect
import warnings
from abc import ABCMeta
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

SCALARS = (type(None), bool, int, float, str)
"""Types that are plain values as they are."""


class Record(NamedTuple):
    """How an object was made."""

    function: Callable[..., Any] | None
    """None for the constructor of its class, else the function that was called."""
    args: tuple[Any, ...]
    """Tensors as arrays, other parts as they are, see ``frozen``."""
    kwargs: dict[str, Any]


class Opaque(NamedTuple):
    """In place of an argument that cannot be kept."""

    what: str


class Recorded(ABCMeta):
    """The metaclass of ``Part``: records the arguments of each call of a class.

    The subclass and its author have no part in it: whatever the constructor does with its arguments, they are those
    that make the object again. An object made by ``__new__`` alone, or unpickled from before, has no record.
    """

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> "Recorded":
        if options.pop("own_times", None) is not None:
            message = f"class {name}(own_times=...) has no effect: methods of a process take times (B,) and (B, L)"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        return super().__new__(mcls, name, bases, namespace, **options)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        # before the constructor, which may change a list that it was given
        made = Record(None, tuple(map(frozen, args)), {name: frozen(value) for name, value in kwargs.items()})
        if torch.get_default_device().type == "meta":
            # where a network is laid out before its weights are read: constants are in no file of weights
            with torch.device("cpu"):
                part = super().__call__(*args, **kwargs)
        else:
            part = super().__call__(*args, **kwargs)
        return _kept(part, made) if type(part) is cls else part

    @property
    def __signature__(cls) -> inspect.Signature:
        """That of the constructor; ``__call__`` above would hide it."""
        return _signature(cls)


class Part(metaclass=Recorded):
    """An object that plain values describe: a process, or what one is composed of, or what runs on it."""

    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the constructor by name, defaults included; override where they are no plain values.

        Raises:
            TypeError: the object was not made by its constructor.
        """
        made = record(self)
        return dict(made.kwargs) if made.function is not None else _bound(type(self), made)

    def _finish(self) -> None:
        """What remains to be done after the constructor."""


def record(part: Part) -> Record:
    """How an object was made.

    Raises:
        TypeError: it was not made by its constructor, so nothing is recorded.
    """
    found = vars(part).get("_record")
    if not isinstance(found, Record):
        name = type(part).__name__
        raise TypeError(
            f"{name} was not made by its constructor, so its arguments are not known: make it as {name}(...)"
        )
    return found


def made_by(part: Any, function: Callable[..., Any], **arguments: Any) -> Any:
    """Records that a function at the top level of a module made ``part``; returns ``part``.

    For objects that no call of their class makes. ``dd.build`` calls the function again with the same arguments.
    """
    return _kept(part, Record(function, (), {name: frozen(value) for name, value in arguments.items()}))


def frozen(value: Any) -> Any:
    """Copy an argument, so that later changes of it have no effect; parts are returned as they are."""
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
    return value


def _kept(part: Any, made: Record) -> Any:
    if hasattr(part, "__dict__"):
        part.__dict__["_record"] = made  # past __setattr__, which a frozen class refuses
    part._finish()
    return part


def _bound(cls: type, made: Record) -> dict[str, Any]:
    """The arguments of a constructor by name."""
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
    """The signature of the constructor that the method resolution order finds first."""
    for base in cls.__mro__[:-1]:
        for name in ("__init__", "__new__"):
            if name in vars(base):
                whole = inspect.signature(getattr(base, name))
                return whole.replace(parameters=list(whole.parameters.values())[1:], return_annotation=whole.empty)
    return inspect.Signature()
