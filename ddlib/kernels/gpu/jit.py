"""Decorator of Triton kernels."""

import inspect
from collections.abc import Callable
from typing import Any

import triton


def kernel(function: Callable[..., Any]) -> Any:
    """Apply ``triton.jit`` to the unwrapped function: Triton reads its source, and shape checks may wrap it."""
    return triton.jit(inspect.unwrap(function))
