"""Constants of a device for a training step: matrix products, attention, bandwidth of a copy.

They are the floor of a step: ``benchmarks.ladder`` compares measured steps with them. Products are
in bfloat16 and on random numbers, since a product of zeros takes less power and so less time.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.profile import Size
from ddlib_models.attention.backends import SDPA

CALLS = 20
WINDOWS = 5
WARM_UP = 3
COPY = 2**30
"""Bytes of the copied tensor: far more than a cache holds."""


def seconds(work: Callable[[], Any], device: str, calls: int = CALLS) -> float:
    """Return the time of a call: the median over windows of several calls."""
    for _ in range(WARM_UP):
        work()
    timings = []
    for _ in range(WINDOWS):
        _wait(device)
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        _wait(device)
        timings.append((time.perf_counter() - begin) / calls)
    return statistics.median(timings)


def matrices(size: Size) -> dict[str, tuple[int, int]]:
    """Return the matrices (outputs, inputs) of a block."""
    width = size.width
    return {
        "query, key, value": (3 * width, width),
        "attention's output": (width, width),
        "MLP's input": (4 * width, width),
        "MLP's output": (width, 4 * width),
    }


def products(size: Size, calls: int = CALLS) -> dict[str, dict[str, float]]:
    """Measure the twelve products of a block: each matrix, forwards and for two gradients.

    Returns:
        milliseconds and TFLOP/s, by name.
    """
    draw = partial(torch.randn, dtype=torch.bfloat16, device=size.device)
    rows = size.sequences * size.length
    speeds = {}
    for name, (outputs, inputs) in matrices(size).items():
        x = draw(rows, inputs)
        gradient = draw(rows, outputs)
        matrix = draw(outputs, inputs)
        work = {
            "forwards": partial(torch.mm, x, matrix.t()),
            "hidden gradient": partial(torch.mm, gradient, matrix),
            "matrix gradient": partial(torch.mm, gradient.t(), x),
        }
        for direction, product in work.items():
            duration = seconds(product, size.device, calls)
            speeds[f"{name}, {direction}"] = _speed(duration, 2 * rows * outputs * inputs)
    return speeds


def attention(size: Size, calls: int = CALLS) -> dict[str, dict[str, float]]:
    """Measure attention of a block, forwards, and backwards from a given gradient of its output."""
    shape = (size.sequences, size.length, size.heads, size.width // size.heads)
    draw = partial(torch.randn, shape, dtype=torch.bfloat16, device=size.device)
    tensors = tuple(draw().requires_grad_() for _ in range(3))
    gradient = torch.randn_like(tensors[0])
    attend = SDPA()

    def forwards() -> Tensor:
        return attend(*tensors, None)

    output = forwards()
    operations = 4 * size.sequences * size.length**2 * size.width
    backwards = partial(torch.autograd.grad, output, tensors, gradient, retain_graph=True)
    return {
        "forwards": _speed(seconds(forwards, size.device, calls), operations),
        "backwards": _speed(seconds(backwards, size.device, calls), 5 * operations // 2),
    }


def bandwidth(device: str, size: int = COPY, calls: int = CALLS) -> float:
    """Return the GB/s, read and written bytes, of a copy of ``size`` bytes on the device."""
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds(partial(target.copy_, source), device, calls) / 1e9


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _speed(duration: float, operations: float) -> dict[str, float]:
    return {"ms": 1000 * duration, "tflops": operations / duration / 1e12}
