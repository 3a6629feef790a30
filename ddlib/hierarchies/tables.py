"""Tables that depend on a hierarchy alone: computed once for it and its device."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch

from ddlib.hierarchies.base import Hierarchy

P = ParamSpec("P")
R = TypeVar("R")


def once(
    function: Callable[Concatenate[Hierarchy, P], R],
) -> Callable[Concatenate[Hierarchy, P], R]:
    """Keep the results of a function of a hierarchy and of numbers, as long as the hierarchy lives.

    A result must not refer to the hierarchy. Threads may call the function at a time: each table is
    computed whole before any of them has it, on every stream of a GPU.
    """
    tables: WeakKeyDictionary[Hierarchy, dict[Hashable, R]] = WeakKeyDictionary()

    @wraps(function)
    def call(hierarchy: Hierarchy, /, *args: P.args, **kwargs: P.kwargs) -> R:
        of_hierarchy = tables.setdefault(hierarchy, {})
        key = (hierarchy.starts.device, args, *kwargs.items())
        if key not in of_hierarchy:
            table = function(hierarchy, *args, **kwargs)
            if torch.cuda.is_initialized():
                torch.cuda.current_stream().synchronize()
            of_hierarchy[key] = table
        return of_hierarchy[key]

    return call
