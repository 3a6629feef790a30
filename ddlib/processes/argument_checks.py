"""Checks of the arguments of a process's methods: type, shape, range, order and device."""

import math

import torch
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.schedules import Schedule
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_devices, check_order, check_times, check_tokens, require, visible


def check_inputs(
    vocab_size: int, num_states: int, place: Tensor, *, x: Tensor | None = None, z: Tensor | None = None,
    t: Tensor | None = None, s: Tensor | None = None, p: Tensor | None = None,
) -> None:  # fmt: skip
    """Raise unless the arguments that are given are well formed.

    Args:
        vocab_size: V.
        num_states: S.
        place: a constant of the process, on its device.
        x: (B, L) tokens.
        z: (B, L) states.
        t: (B,) or (B, L) times.
        s: earlier times, of the shape of ``t``.
        p: (B, L, V) distributions over tokens.

    Raises:
        TypeError, ValueError: the first argument that is not of the right type, shape, range or device.
    """
    tokens = z if x is None else x
    if x is not None:
        check_tokens("x", x, vocab_size, "words")
    if z is not None:
        check_tokens("z", z, num_states, "states")
    for name, time in (("t", t), ("s", s)):
        if time is not None and tokens is not None:
            check_times(name, time, *tokens.shape)
    if x is not None and z is not None:
        require(x.shape == z.shape, f"z has shape {tuple(z.shape)}, must be that of x, {tuple(x.shape)}")
    if s is not None and t is not None:
        require(s.shape == t.shape, f"s has shape {tuple(s.shape)}, must be that of t, {tuple(t.shape)}")
        alone = tokens is not None and tokens.shape[1] == 1
        check_order(s, t, strictly=t.ndim == 1 and not alone)  # with times per position, s = t is allowed
    if p is not None and tokens is not None:
        want = (*tokens.shape, vocab_size)
        require(tuple(p.shape) == want, f"p has shape {tuple(p.shape)}, must be (B, L, V) = {want}")
        if visible(p):
            total = p.sum(-1)
            bad = ~((p >= 0).all(-1) & ((total - 1).abs() < 0.01))
            require(not bool(bad.any()), "p holds a row that is no law: negative, NaN, or not of sum 1")
    check_devices(x=x, z=z, t=t, s=s, p=p, process=place)


def check_schedule(schedule: Schedule) -> None:
    """Raise TypeError unless the argument is a schedule, ValueError unless alpha decreases from 1 to 0."""
    if not isinstance(schedule, Schedule):
        raise TypeError(f"schedule is {schedule!r}, must be a ddlib.schedules.Schedule")
    schedule.check()


def check_tree(hierarchy: Hierarchy, schedule: Schedule) -> None:
    """Raise unless the arguments are a hierarchy and a schedule that resolves its slowest edge.

    Raises:
        TypeError: arguments of another kind.
        ValueError: alpha not decreasing from 1 to 0, or 0 in float64 before the slowest edge has ended.
    """
    if not isinstance(hierarchy, Hierarchy):
        raise TypeError(f"hierarchy is {hierarchy!r}, must be a ddlib.hierarchies.Hierarchy")
    check_schedule(schedule)
    slowest = min(hierarchy.speeds)
    schedule.check_resolves(f"speed {slowest:g}", lambda duration: math.exp(-slowest * duration))


def check_forwards(z: Tokens, s: Times, t: Times) -> None:
    """Raise TypeError or ValueError unless ``s`` is well formed, of the shape of ``t``, and s <= t."""
    check_times("s", s, *z.shape)
    require(s.shape == t.shape, f"s has shape {tuple(s.shape)}, must be that of t, {tuple(t.shape)}")
    check_devices(z=z, s=s)
    check_order(s, t)


def place_of(modules: torch.nn.Module, constant: Tensor) -> Tensor:
    """Move ``constant`` to the device of the first other constant, parameter or buffer of the module."""
    tensors = (value for module in modules.modules() for value in (*vars(module).values(), *module.buffers(False)))
    other = next((v for v in tensors if isinstance(v, Tensor) and v is not constant), constant)
    return constant.to(other.device)
