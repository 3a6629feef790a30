"""The decorator of Triton kernels."""

import inspect
from collections.abc import Callable
from typing import Any

import triton


def kernel(function: Callable[..., Any]) -> Any:
    """``triton.jit`` of the function as it is written: Triton reads its source, and shape checks may be around it."""
    return triton.jit(inspect.unwrap(function))
