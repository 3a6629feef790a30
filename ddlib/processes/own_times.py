"""A time per position for methods that were written for one per sequence: each position as a sequence of its own."""

from collections.abc import Callable
from functools import wraps
from inspect import isfunction, signature
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.utils.random import KeyedGenerator

STEPS = ("posterior", "step_divergence")
"""Methods that tell of a step back from t to an earlier s, and know nothing of a step of no length."""

_TIMES, _TOKENS = ("s", "t"), ("x", "z", "p", "logits")


def answers_times(member: object) -> bool:
    """Whether it is a method that is told times, ``t``."""
    return isfunction(member) and "t" in signature(member).parameters


def position_by_position(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, served at times (B, L) too; times (B,) it gets as they come.

    Positions are noised on their own, so a text (B, L) at times (B, L) is B L texts of one position, (B L, 1), at times
    (B L,). What is said of a text as a whole is not served so.

    Raises:
        TypeError: at times (B, L): the method does not answer for each position by itself, or is asked for noise that
            positions or texts share.
    """
    names = signature(method)

    @wraps(method)
    def served(*args: Any, **kwargs: Any) -> Any:
        if not any(map(_two_axes, (*args, *kwargs.values()))):  # most calls: nothing is bound for them
            return method(*args, **kwargs)
        given = names.bind(*args, **kwargs)
        t, tokens = given.arguments.get("t"), [given.arguments.get(name) for name in _TOKENS]
        if not _two_axes(t) or any(isinstance(each, Tensor) and each.shape[:2] != t.shape for each in tokens):
            return method(*args, **kwargs)  # which refuses times of another shape
        rows, length = t.shape
        refusal = (
            f"t has shape {tuple(t.shape)}, must be (B,) = ({rows},), one time per sequence: "
            f"{type(args[0]).__name__}.{method.__name__} is served position by position, "
        )
        axes = 1
        for name, value in given.arguments.items():
            if name in _TIMES and isinstance(value, Tensor):
                given.arguments[name] = value.flatten()
            elif isinstance(value, Tensor) and value.shape[:2] == t.shape:
                given.arguments[name], axes = value.flatten(0, 1)[:, None], 2
            elif isinstance(value, KeyedGenerator):
                given.arguments[name] = value.split(length)
            elif name == "levels" and value != "independent":
                raise TypeError(f"{refusal}which {name} = {value!r} is not")

        def back(value: Any) -> Any:
            if isinstance(value, tuple):
                parts = map(back, value)
                return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
            if not isinstance(value, Tensor):
                return value
            if value.shape[:axes] != (rows * length, 1)[:axes]:
                raise TypeError(f"{refusal}and does not answer for each")
            return value.view(rows, length, *value.shape[axes:])

        return back(method(*given.args, **given.kwargs))

    return served


def standing_still(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One of ``STEPS``, served where positions stand still, s = t: the posterior is the state itself, the step costs 0.

    That is asked of positions with times of their own; a text of several that have one time must move.
    """
    names = signature(method)

    @wraps(method)
    def served(*args: Any, **kwargs: Any) -> Tensor:
        given = names.bind(*args, **kwargs)
        z, t, s = (given.arguments.get(name) for name in "zts")
        if not (isinstance(z, Tensor) and isinstance(t, Tensor) and isinstance(s, Tensor)) or s.shape != t.shape:
            return method(*args, **kwargs)  # which refuses them
        if not (t.shape == z.shape or (t.ndim == 1 and z.shape[1:] == (1,))):
            return method(*args, **kwargs)
        stands = torch.eq(s, t)
        # any other step in their place: what is said of it is not looked at
        given.arguments |= {"s": torch.where(stands, 0.25, s), "t": torch.where(stands, 0.5, t)}
        said, stands = method(*given.args, **given.kwargs), stands.view(z.shape)
        if method.__name__ == "step_divergence":
            return torch.where(stands, 0.0, said)
        return torch.where(stands[..., None], one_hot(z, said.shape[-1]).to(said.dtype), said)

    return served


def _two_axes(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point()
