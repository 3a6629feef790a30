"""Attributes of modules and classes by former names, which warn for one release, and messages for
unknown names.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "Renamed",
    "module_getattr",
    "provide_renamed",
    "renamed_attribute",
    "renamed_keyword",
    "renamed_value",
]


P = ParamSpec("P")
R = TypeVar("R")


def _warn(former: str, present: str) -> None:
    message = f"{former} is {present} now; the next release removes the former name"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def _plain(name: str, module: str) -> str:
    return f"module {module!r} has no attribute {name!r}"


unknown: Callable[[str, str], str] = _plain
"""Message for an attribute that a module lacks.

``ddlib`` sets one with suggestions, which need all of its packages.
"""


class Renamed:
    """Descriptor of an attribute of a class under its former name.

    Args:
        present: the name of the attribute now.
    """

    def __init__(self, present: str) -> None:
        self.present = present

    def __set_name__(self, owner: type, name: str) -> None:
        self.former = name

    def __get__(self, instance: Any, owner: type) -> Any:
        _warn(f"{owner.__name__}.{self.former}", f"{owner.__name__}.{self.present}")
        return getattr(owner if instance is None else instance, self.present)


def renamed_attribute(subject: Any, former: str, present: str) -> Any:
    """Return an attribute of an object of a user's class, which may have it under its former name,
    with a warning.
    """
    if hasattr(subject, present) or not hasattr(subject, former):
        return getattr(subject, present)
    owner = type(subject).__name__
    _warn(f"{owner}.{former}", f"{owner}.{present}")
    return getattr(subject, former)


def provide_renamed(subject: Any, former: str, present: str) -> None:
    """Set an attribute of an object of a user's class that has it under its former name only, with
    a warning.
    """
    if hasattr(subject, former):
        setattr(subject, present, renamed_attribute(subject, former, present))


def renamed_value(argument: str, value: Any, former: str, present: str) -> Any:
    """Return the value of an argument, the present name in place of its former name, with a
    warning.
    """
    if value != former:
        return value
    _warn(f"{argument}={former!r}", f"{argument}={present!r}")
    return present


def renamed_keyword(former: str, present: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of a constructor that accepts an argument by its former name too, with a
    warning.

    Args:
        former: the former name of the argument.
        present: its name now.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            if former in kwargs:
                owner = function.__qualname__.removesuffix(".__init__")
                _warn(f"{owner}({former}=...)", f"{owner}({present}=...)")
                kwargs[present] = kwargs.pop(former)
            return function(*args, **kwargs)

        return called

    return decorated


def module_getattr(module: str, former: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module that has former names.

    Args:
        module: the name of the module, ``__name__``.
        former: the present name of each former one.
    """

    def found(name: str) -> Any:
        if name not in former:
            raise AttributeError(unknown(name, module))
        _warn(f"{module}.{name}", f"{module}.{former[name]}")
        return getattr(sys.modules[module], former[name])

    return found
