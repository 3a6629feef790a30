"""Derivative of an elementwise function, in inference mode too."""

from collections.abc import Callable

import torch
from torch import Tensor


def derivative(function: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """Compute the derivative of ``function`` at ``t`` in the direction of ones, by forward-mode
    differentiation.
    """
    t = t.contiguous()  # jvp writes in place, and entries of an expanded tensor share memory
    if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        # in inference mode torch 2.10 returns 0 for every derivative
        with torch.inference_mode(False):
            return derivative(function, t.clone())
    slope: Tensor = torch.func.jvp(function, (t,), (torch.ones_like(t),))[1]
    return slope
