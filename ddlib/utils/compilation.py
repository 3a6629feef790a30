"""Functions that ``torch.compile`` leaves out."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def disable_compile(function: Callable[P, R]) -> Callable[P, R]:
    """Exclude a function from ``torch.compile``, at one graph break: shapes depend on noisy states
    or times.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # only now: torch.compiler.disable imports the compiler
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call
