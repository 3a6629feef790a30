"""Condition and decorator of Triton kernels.

Triton is not imported before the first kernel is needed.
"""

import inspect
import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch


def usable(device: torch.device) -> bool:
    """Return whether Triton kernels run on ``device``: it is a CUDA device, and Triton is
    installed.

    With DDLIB_TRITON=0 in the environment (read at each call) the implementation for CPUs is used
    on CUDA too.
    """
    return device.type == "cuda" and os.environ.get("DDLIB_TRITON", "1") != "0" and _is_installed()


@cache
def _is_installed() -> bool:
    return find_spec("triton") is not None


def kernel(function: Callable[..., Any], **options: Any) -> Any:
    """Apply ``triton.jit``, with its options, to the unwrapped function.

    Triton reads its source, and shape checks may wrap it.
    """
    import triton

    return triton.jit(inspect.unwrap(function), **options)
