"""List of planted faults, and the decorator that adds one: a correct object with one method or
function replaced.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static, signature
from types import new_class
from typing import Any

import pytest

import ddlib as dd

WORDS = [0, 0, 1, 1, 2, 3]
ABOVE = [0, 1, 1, 0]


@dataclass(frozen=True)
class Fault:
    """A planted fault; ``plant`` returns the broken object."""

    name: str
    breaks: str
    plant: Callable[[pytest.MonkeyPatch], Any]
    module: str
    raises: str = ""
    """Name of the exception that the fault causes, if it causes one."""


FAULTS: list[Fault] = []


def fault(
    breaks: str,
    right: Callable[..., Any] | None = None,
    *arguments: Any,
    build: Callable[..., Any] | None = None,
    within: Any = None,
    raises: str = "",
    **options: Any,
) -> Callable[..., Any]:
    """Add the decorated function to ``FAULTS``; the name of the function states what is wrong.

    Three forms:

    - ``fault(breaks)``: the function takes ``monkeypatch`` and returns the broken object.
    - ``fault(breaks, Right, *arguments, **options)``: the function replaces a method or attribute
      of ``Right``. Its first parameter has the name of that method, and its value is the original
      method, bound to the object; the other parameters are those of the method. The broken object
      is ``Broken(*arguments, **options)`` of a subclass ``Broken`` with that method.
    - ``fault(breaks, right, *arguments, within=module, **options)``: the function replaces one in a
      module, a class or a dictionary, in the same way. The object is ``right(*arguments,
      **options)``.

    ``fault(...)(name=lambda ...)`` adds a fault of one expression.

    Args:
        breaks: the formula that does not hold.
        right: class of the correct object; with ``within`` any callable that returns this object.
        *arguments: of ``right``.
        build: called in place of the broken class, as ``build(Broken, *arguments, **options)``.
        within: module, class or dictionary in which a function is replaced; None for a subclass of
            ``right``.
        raises: name of the exception that the fault causes; needed only for one of ``STALE`` in
            ``test_faults.py``.
        **options: of ``right``.
    """

    def plant(change: Callable[..., Any], patch: pytest.MonkeyPatch) -> Any:
        if within is not None:
            replace(patch, within, change)
            return right(*arguments, **options)
        broken = broken_class(right, change)
        return (
            broken(*arguments, **options) if build is None else build(broken, *arguments, **options)
        )

    def add(
        decorated: Callable[..., Any] | None = None, **rows: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        for name, change in (
            rows if decorated is None else {decorated.__name__: decorated}
        ).items():
            planted = change if right is None else partial(plant, change)
            FAULTS.append(Fault(name.replace("_", " "), breaks, planted, change.__module__, raises))
        return decorated

    return add


def declare(right: type, **guarantees: bool) -> type:
    """Subclass of a sampler or corrector that declares guarantees that it does not keep."""

    class Declared(right):  # type: ignore[misc, valid-type]
        @property
        def guarantees(self) -> Any:
            return dataclasses.replace(super().guarantees, **guarantees)

    return Declared


def broken_class(right: type, change: Callable[..., Any]) -> type:
    """Subclass of ``right`` with ``change`` in place of the method named by the first parameter of
    ``change``.

    Raises:
        AttributeError: ``right`` has no such method.
    """
    name, *_ = signature(change).parameters
    method = method_of(change, lambda self: getattr(super(broken, self), name))
    body = {
        "__module__": change.__module__,
        "__qualname__": f"{change.__qualname__}.<locals>.Broken",
    }
    member = method if callable(getattr_static(right, name)) else property(method)
    if name in getattr(right, "__abstractmethods__", ()):
        body[name] = member
    broken = new_class("Broken", (right,), {}, lambda namespace: namespace.update(body))
    # afterwards, as a class with another ``transition`` and inherited closed forms is refused
    setattr(broken, name, member)
    return broken


def replace(patch: pytest.MonkeyPatch, within: Any, change: Callable[..., Any]) -> None:
    """Replace the function of a module, class or dictionary named by the first parameter of
    ``change``.
    """
    name, *_ = signature(change).parameters
    right = within[name] if isinstance(within, dict) else getattr(within, name)
    if isinstance(within, dict):
        patch.setitem(within, name, partial(change, right))
    elif isinstance(within, type):
        patch.setattr(within, name, method_of(change, lambda self: right.__get__(self)))
    else:
        patch.setattr(within, name, partial(change, right))


def method_of(change: Callable[..., Any], right: Callable[[Any], Any]) -> Callable[..., Any]:
    """Method that calls ``change`` with ``right(self)`` as first argument.

    Its signature omits this argument.
    """

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return change(right(self), self, *args, **options)

    whole = signature(change)
    method.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])
    return method


def tree(cls: type = dd.hierarchies.Tree, xi: float = 0.8) -> Any:
    """Tree of tokens, four clusters and the mask."""
    return cls([WORDS], xi=xi, speed=[2.0, 1.0])


def deep(cls: type = dd.hierarchies.Tree, xi: tuple[float, float] = (0.8, 0.6)) -> Any:
    """Tree of tokens, four clusters, two superclusters and the mask."""
    return cls([WORDS, ABOVE], xi=xi, speed=[0.7, 1.3, 2.0])


def over(cls: Any, *arguments: Any, **options: Any) -> Any:
    """Process over a hierarchy of the class."""
    return hierarchical(dd.processes.Hierarchical, cls(*arguments, **options))


def clamped(cls: Any, *arguments: Any, **options: Any) -> Any:
    """Sampler of the class that clamps all states to tokens in ``finalize``."""
    body = {"finalize": lambda self, run, state: state.z.clamp_max(run.process.vocab_size - 1)}
    body |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls)("Broken", (cls,), body)(*arguments, **options)


def hierarchical(cls: type, hierarchy: Any = None) -> Any:
    """Process of the class over ``tree()``, with the linear schedule."""
    return cls(tree() if hierarchy is None else hierarchy, dd.schedules.Linear())
