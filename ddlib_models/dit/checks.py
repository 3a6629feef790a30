"""Checks of arguments; each error names the argument, its value and the rule."""

import torch
from torch import Tensor


def check_least(least: int, **values: int) -> None:
    """Raise ValueError for a number below ``least``."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name}={value}: must be at least {least}")


def check_states(num_states: int, vocab_size: int) -> None:
    """Raise ValueError unless all tokens, at least one, are states."""
    check_least(1, vocab_size=vocab_size)
    if vocab_size > num_states:
        raise ValueError(
            f"vocab_size={vocab_size}: tokens are states, so it must be <= num_states={num_states}"
        )


def check_shares(**values: float) -> None:
    """Raise ValueError for a probability outside [0, 1)."""
    for name, value in values.items():
        if not 0.0 <= value < 1.0:
            raise ValueError(f"{name}={value}: must lie in [0, 1)")


def check_range(what: str, index: Tensor, least: int, size: int, rule: str) -> None:
    """Raise for indices outside of least..size-1.

    On a CPU only, as an accelerator would synchronise at every call.
    """
    if index.device.type == "cpu" and index.numel() and not torch.compiler.is_compiling():
        low = int(index.min())
        high = int(index.max())
        if low < least or high >= size:
            raise ValueError(f"{what} {low}..{high}: {rule}")


def check_indices(what: str, index: Tensor, size: int, name: str) -> None:
    """Raise ValueError for indices outside of 0..size-1, on a CPU."""
    check_range(what, index, 0, size, f"must lie in 0..{name}-1={size - 1}")


def check_noisy(z: Tensor, num_states: int) -> None:
    """Raise ValueError for numbers that are not states of the network, on a CPU."""
    rule = (
        f"must lie in 0..num_states-1={num_states - 1} of the network, which must be those of "
        "the process"
    )
    check_range("z holds states", z, 0, num_states, rule)


def check_memory(memory: Tensor, shape: tuple[int, ...], taken: bool, plain: bool) -> None:
    """Raise ValueError for features of a previous call that the network or the call does not
    take.
    """
    if not taken:
        raise ValueError("memory: must be None with memory=False; build the model with memory=True")
    if not plain:
        raise ValueError(
            "memory: not with clean or cache, as their tokens have no features of a previous call"
        )
    if memory.shape != shape:
        raise ValueError(
            f"memory has shape {tuple(memory.shape)}: expected (B, L, D) = {tuple(shape)}, that of "
            "features"
        )


def check_blocks(x: Tensor, block_size: int, vocab_size: int) -> None:
    """Raise unless ``x`` holds tokens in whole blocks."""
    if block_size == 0 or x.ndim != 2 or x.shape[1] % block_size:
        raise ValueError(
            f"x has shape {tuple(x.shape)}, block_size={block_size}: expected (B, L) with L a "
            "multiple of block_size, "
            "which is at least 1"
        )
    check_indices("x holds tokens", x, vocab_size, "vocab_size")
