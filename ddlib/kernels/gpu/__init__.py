"""Triton kernels for plain hierarchies, used if ``usable`` returns True; Triton is not imported before that.

Their logic is tested in Triton's interpreter, and on an H200 against the CPU (tests/ddlib/test_triton_gpu.py). Tile
sizes and the costs stated in this package are estimates until ``benchmarks/gpu_head.py`` has measured them.
"""

import os
from functools import cache
from importlib.util import find_spec

import torch


def usable(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernels support hidden states of ``dtype`` on ``device``: CUDA, Triton, any dtype but float64.

    With DDLIB_TRITON=0 in the environment (read at each call) the CPU implementation is used on CUDA too.
    """
    enabled = device.type == "cuda" and dtype != torch.float64 and os.environ.get("DDLIB_TRITON", "1") != "0"
    return enabled and _installed()


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
