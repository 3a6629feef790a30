"""Base class of objects that plain values describe: those of their constructor's arguments."""

import inspect
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor


class Part(ABC):  # noqa: B024 # its subclasses, the bases of the kinds, have abstract methods
    """Base class of processes, their components, and samplers.

    An object is described by its class and its constructor's arguments. Each argument is an
    attribute of the same name. An argument that the object stores in another form is passed to
    ``declare``.

    Example:
        >>> class Square(Part):
        ...     def __init__(self, power, names):
        ...         self.power = power
        ...         self.declare(names=names)
        >>> Square(2, ["a"]).arguments()
        {'power': 2, 'names': ('a',)}
    """

    def declare(self, **arguments: Any) -> None:
        """Store constructor arguments that are not attributes of the same names and values.

        Tensors, arrays and lists are copied.
        """
        declared = {name: _copy(value) for name, value in arguments.items()}
        # by the dictionary: frozen classes forbid __setattr__
        vars(self)["_declared"] = vars(self).get("_declared", {}) | declared

    def arguments(self) -> Mapping[str, Any]:
        """Return the constructor's arguments by name, defaults included.

        Raises:
            TypeError: an argument that is neither an attribute nor declared.
        """
        declared = vars(self).get("_declared", {})
        maker = maker_of(self)
        values = {}
        for name in _parameters(maker):
            if name not in declared and not hasattr(self, name):
                cls = type(self).__name__
                raise TypeError(
                    f"{cls} has no attribute {name!r}, must have one for each argument of "
                    f"{maker.__name__}: create it by {cls}(...), which stores {name} under its "
                    "name or passes it to self.declare"
                )
            values[name] = declared[name] if name in declared else getattr(self, name)
        return values


def record_maker(part: Any, function: Callable[..., Any], **arguments: Any) -> Any:
    """Describe ``part`` as the result of a function at the top level of a module; return it.

    This is for objects that are not made by calling their class.
    """
    vars(part)["_maker"] = function
    part.declare(**arguments)
    return part


def maker_of(part: Part) -> Callable[..., Any]:
    """Return the class or function that makes a part from its arguments."""
    maker: Callable[..., Any] = vars(part).get("_maker", type(part))
    return maker


@cache
def _parameters(maker: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments of a class or function."""
    return tuple(inspect.signature(maker).parameters)


def _copy(value: Any) -> Any:
    """Copy an argument, so that later changes of it have no effect; parts are not copied."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(map(_copy, value))
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return value
