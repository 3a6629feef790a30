"""Triton kernels for plain hierarchies, used if ``usable`` returns True.

Triton is not imported before that.

Their logic is tested in Triton's interpreter, and on an H200 against the CPU
(tests/ddlib/test_triton_gpu.py). ``benchmarks/gpu_head.py`` measures their time and memory.
"""

import torch

from ddlib.utils import triton_kernels


def usable(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernels support hidden states of ``dtype`` on ``device``: any dtype but
    float64.
    """
    return dtype != torch.float64 and triton_kernels.usable(device)


def precision() -> str:
    """Return the ``input_precision`` of products of float32, by the setting of torch."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
