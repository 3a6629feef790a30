"""A time per position for methods that were written for one per sequence: each position as a sequence of its own."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from types import FunctionType
from typing import Any

from torch import Tensor

from ddlib.noise import KeyedGenerator

_TOKENS = {"x", "z", "p", "logits"}


def of_tokens_and_times(member: object) -> bool:
    """Whether it is a method that is told tokens, or what is known of them, and their times."""
    if not isinstance(member, FunctionType):
        return False
    names = signature(member).parameters
    return "t" in names and not _TOKENS.isdisjoint(names)


def position_by_position(method: Callable[..., Any]) -> Callable[..., Any]:
    r"""The method, served at times (B, L) too.

    Positions are noised on their own, so a text (B, L) at times (B, L) is B L texts of one position, (B L, 1), at times
    (B L,). What is said of texts as a whole is not served so.

    Raises:
        TypeError: of the result, at times (B, L): the method does not answer for each position by itself.
    """
    names = signature(method)

    @wraps(method)
    def served(*args: Any, **kwargs: Any) -> Any:
        # asked without binding: of one time per sequence, which is most calls, nothing else is wanted
        if not any(isinstance(each, Tensor) and each.ndim == 2 and each.is_floating_point()
                   for each in (*args, *kwargs.values())):  # fmt: skip
            return method(*args, **kwargs)
        given = names.bind(*args, **kwargs)
        t = given.arguments.get("t")
        if not isinstance(t, Tensor) or t.ndim != 2:
            return method(*args, **kwargs)
        where = f"{type(args[0]).__name__}.{method.__name__}"
        levels = given.arguments.get("levels", "independent")
        if levels != "independent":
            raise TypeError(f"levels is {levels!r}, t has shape {tuple(t.shape)}: {where} takes one time per sequence")
        rows, length = t.shape
        for name, value in given.arguments.items():
            if isinstance(value, Tensor) and value.shape[:2] == t.shape:
                given.arguments[name] = value.flatten() if name in ("s", "t") else value.flatten(0, 1)[:, None]
            elif isinstance(value, KeyedGenerator):
                given.arguments[name] = value.split(length)

        def back(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(back, value))
            if not isinstance(value, Tensor):
                return value
            if value.shape[:2] != (rows * length, 1):
                raise TypeError(f"t has shape {tuple(t.shape)}: {where} takes one time per sequence, (B,) = ({rows},)")
            return value.view(rows, length, *value.shape[2:])

        return back(method(*given.args, **given.kwargs))

    return served
