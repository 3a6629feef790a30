"""Triton kernels for plain hierarchies. They are asked for by ``usable``; nothing here imports Triton before that.

Their logic is tested in Triton's interpreter. They have run on no GPU yet: sizes of tiles and all costs named in this
package are estimates until ``benchmarks/gpu_head.py`` has measured them.
"""

import os
from functools import cache
from importlib.util import find_spec

import torch


def usable(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether hidden states of ``dtype`` on ``device`` are served here: on CUDA, with Triton, but in float64.

    With DDLIB_TRITON=0 in the environment (read at each call) the blocks that serve a CPU serve CUDA too.
    """
    wanted = device.type == "cuda" and dtype != torch.float64 and os.environ.get("DDLIB_TRITON", "1") != "0"
    return wanted and _installed()


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
