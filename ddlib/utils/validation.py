"""Validation of arguments; error messages contain the argument, its value and the violated rule.

Types and shapes are always checked. Values (ranges, NaN) are checked on CPU tensors. On an
accelerator such a check synchronises with the host, so each is done once for every line of a
program that calls ddlib, when the line first runs; always after ``debug(True)`` or with
``DDLIB_DEBUG=1`` in the environment. Values are not checked while ``torch.compile`` is tracing or a
CUDA graph is recorded.
"""

import math
import os
import sys
import warnings
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from types import FrameType
from typing import NoReturn

import torch
from torch import Tensor

_debug = os.environ.get("DDLIB_DEBUG", "0") not in ("", "0")
_hidden = ContextVar("_hidden", default=False)
_measured = ContextVar("_measured", default=False)


def debug(active: bool = True) -> None:
    """Check the values of tensors on an accelerator at every call, at one synchronisation per
    check, or only when a line of the program first calls ddlib.
    """
    global _debug
    _debug = active


def visible(tensor: Tensor) -> bool:
    """Return whether the host may read the values of ``tensor`` at every call: it is on the CPU, or
    ``debug(True)`` was called, and not within ``hide_values``.

    For code that computes in another way where it may; for checks see ``due``.
    """
    if torch.compiler.is_compiling() or _hidden.get():
        return False
    return tensor.device.type == "cpu" or _debug


def due(*tensors: Tensor) -> bool:
    """Return whether the values of ``tensors`` are to be checked now.

    Always where they are ``visible``. On an accelerator once on each path of calls from a line
    outside ddlib to the check: a wrong argument is found when its line first runs, and a loop does
    not wait for the device in each turn.
    """
    if torch.compiler.is_compiling() or _hidden.get():
        return False
    if all(visible(tensor) for tensor in tensors):
        return True
    if any(tensor.is_meta for tensor in tensors) or _recording():
        return False
    *path, line = _calls(2)
    paths = _checked.setdefault(line, set())
    first = tuple(path) not in paths
    paths.add(tuple(path))
    return first


def _recording() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


Call = tuple[str, int]
"""File and line of a call."""
_checked: dict[Call, set[tuple[Call, ...]]] = {}
"""Calls that led from a line outside ddlib to checks of values that were made."""


def _calls(depth: int) -> list[Call]:
    """Return the calls from a frame, ``depth`` above this one, to the first line outside ddlib."""
    frame: FrameType | None = sys._getframe(depth)
    calls = []
    while frame is not None:
        calls.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back if _inner(frame) else None
    return calls


def _inner(frame: FrameType) -> bool:
    """Return whether a frame is one of this library, or of torch between two of them."""
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package in ("ddlib", "ddlib_models", "torch")


@contextmanager
def hide_values() -> Iterator[None]:
    """Check no values of tensors in a block, as in a recorded graph, in this thread."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


@contextmanager
def without_rough_checks() -> Iterator[None]:
    """Accept processes and paces that fail their rough checks in a block, in this thread:
    ``dd.verify`` measures them and reports how they fail.
    """
    token = _measured.set(True)
    try:
        yield
    finally:
        _measured.reset(token)


def check_roughly() -> bool:
    """Return whether a process or a pace is to be checked before its first use."""
    return not (torch.compiler.is_compiling() or _measured.get())


class UsageWarning(UserWarning):
    """Warning about usage that is valid but probably not intended.

    Issued once per process and kind.
    """


_warned: set[Hashable] = set()


@contextmanager
def without_warning(kind: Hashable) -> Iterator[None]:
    """Issue no warning of a kind in a block, and leave it to be issued later."""
    known = kind in _warned
    _warned.add(kind)
    try:
        yield
    finally:
        if not known:
            _warned.discard(kind)


def warn_once(kind: Hashable, message: str) -> None:
    """Issue a ``UsageWarning`` at the line of the caller outside ddlib, the first time for each
    ``kind``.
    """
    if kind in _warned or torch.compiler.is_compiling():
        return
    _warned.add(kind)
    frame = sys._getframe(1)
    depth = 2
    while frame.f_back is not None and _inner(frame):
        frame = frame.f_back
        depth = depth + 1
    warnings.warn(message, UsageWarning, stacklevel=depth)


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless ``condition`` holds."""
    if not condition:
        refuse(message)


def refuse(message: str) -> NoReturn:
    """Raise ``ValueError(message)``; where the line that led here runs again, its checks of values
    are due again.
    """
    if _checked and not torch.compiler.is_compiling():
        _checked.pop(_calls(2)[-1], None)
    raise ValueError(message)


def check_shape(name: str, tensor: Tensor, shape: Sequence[int | None], rule: str) -> None:
    """Raise ValueError unless ``tensor`` has ``shape`` (None matches any size)."""
    fits = tensor.ndim == len(shape) and all(
        want is None or want == got for want, got in zip(shape, tensor.shape, strict=True)
    )
    require(fits, f"{name} has shape {tuple(tensor.shape)}, must be {rule}")


def check_tokens(name: str, tokens: Tensor, limit: int, what: str = "tokens") -> None:
    """Raise unless ``tokens`` is int64 (B, L), not empty, and within ``[0, limit)``.

    Raises:
        TypeError: another dtype (torch would accept or wrap it silently).
        ValueError: an empty batch, another shape, or an id out of range, including -100 and other
            negative ids.
    """
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64:
        got = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(f"{name} has dtype {got}, must be a torch.int64 tensor of {what}")
    check_shape(name, tokens, (None, None), "(B, L)")
    require(
        tokens.numel() > 0,
        f"{name} is empty, shape {tuple(tokens.shape)}: a batch needs at least one token",
    )
    if due(tokens):
        low, high = (int(v) for v in torch.aminmax(tokens))
        worst = low if low < 0 else high
        require(low >= 0 and high < limit, f"{name} holds {worst}, must be {what} in [0, {limit})")


def check_times(name: str, t: Tensor, batch: int, length: int | None = None) -> None:
    """Raise unless ``t`` is floating point, of shape (B,), or (B, L) if ``length`` is given, and
    within [0, 1].

    Raises:
        TypeError: an integer dtype.
        ValueError: another shape, NaN, or a time outside [0, 1].
    """
    axes = "(B,)" if length is None else "(B,) or (B, L)"
    if not isinstance(t, Tensor) or not t.is_floating_point():
        got = t.dtype if isinstance(t, Tensor) else type(t).__name__
        raise TypeError(f"{name} has type {got}, must be a floating-point tensor of shape {axes}")
    rule = f"(B,) = ({batch},), one time per sequence"
    if length is None or t.ndim != 2:
        rule += "" if length is None else f", or (B, L) = ({batch}, {length}), one per position"
        check_shape(name, t, (batch,), rule)
    else:
        check_shape(
            name, t, (batch, length), f"{rule}, or (B, L) = ({batch}, {length}), one per position"
        )
    if due(t):
        outside = ~((t >= 0) & (t <= 1))
        if bool(outside.any()):
            refuse(f"{name} holds {t[outside][0].item()}, must lie in [0, 1]")


def check_interval(interval: Sequence[float]) -> tuple[float, float]:
    """Return two times in [0, 1].

    Raises:
        TypeError, ValueError: not two numbers in [0, 1], the earlier first.
    """
    require(len(interval) == 2, f"interval is {interval!r}, must be two times")
    low, high = (
        check_number(f"interval[{i}]", end, 0, 1, "in [0, 1]") for i, end in enumerate(interval)
    )
    require(low < high, f"interval is {interval!r}, must be two times, the earlier first")
    return low, high


def check_order(s: Tensor, t: Tensor) -> None:
    """Raise ValueError unless ``s <= t`` everywhere; the message has the first violation."""
    if due(s, t):
        bad = ~(s <= t)
        if bool(bad.any()):
            where = tuple(int(i) for i in bad.nonzero()[0])
            refuse(f"s = {s[where].item()} must be at most t = {t[where].item()}, at {where}")


def check_logits(
    logits: Tensor, shape: Sequence[int], vocab_size: int, states: int | None = None
) -> None:
    """Raise unless ``logits`` is floating point of shape (B, L, V) for the process's V tokens.

    Args:
        logits: output of the network.
        shape: (B, L).
        vocab_size: number of tokens V.
        states: S - 1 for child logits, (B, L, S - 1): one column per state but the root.

    Raises:
        TypeError: an integer dtype.
        ValueError: another shape; for another last axis the message has the probable cause.
    """
    columns, axes = (vocab_size, "(B, L, V)") if states is None else (states, "(B, L, S - 1)")
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits has type {got}, must be a floating-point tensor of shape {axes}")
    check_shape("logits", logits, (*shape, None), f"{axes} = ({shape[0]}, {shape[1]}, {columns})")
    width = logits.shape[-1]
    if states is None:
        rule = f"the process has vocab_size {vocab_size}: " + (
            "the network must have one logit per token of this process and no others (no mask, no "
            "clusters, no padding)"
        )
    else:
        tokens = (
            ", and those of tokens have V, parameterization='cavity'" if width == vocab_size else ""
        )
        rule = f"must have {states}: child logits have S - 1, one per state but the root{tokens}"
    require(width == columns, f"logits has {width} columns, {rule}")
    if states is None and due(logits) and _are_probabilities(logits):
        warn_once(
            "probabilities",
            "every row of the logits is at least 0 and sums to 1, as probabilities do: the network "
            "must return logits, so leave out its softmax, or return the logarithm",
        )


def _are_probabilities(logits: Tensor) -> bool:
    """Return whether all rows are at least 0 and sum to 1; False for a few rows, which may by
    chance.
    """
    if logits.shape[0] * logits.shape[1] < 16 or logits.shape[-1] == 1:
        return False
    # almost always the first row answers
    return all(
        bool((rows >= 0).all())
        and bool(((rows.sum(-1, dtype=torch.float32) - 1).abs() < 1e-2).all())
        for rows in (logits[:1, :1].detach(), logits.detach())
    )


def check_finite(logits: Tensor) -> None:
    """Raise ValueError if a row holds NaN, +inf or only -inf, as detected by its maximum (amax
    propagates NaN).
    """
    if due(logits):
        largest = logits.detach().amax(-1)
        bad = ~largest.isfinite()
        if bool(bad.any()):
            where = tuple(int(i) for i in bad.nonzero()[0])
            refuse(
                f"logits at position {where} hold NaN, +inf, or -inf only (the largest is "
                f"{largest[where].item()}), "
                "must be finite or -inf with at least one finite entry"
            )


def check_mask(name: str, mask: Tensor, shape: Sequence[int]) -> None:
    """Raise unless ``mask`` is bool of ``shape`` and keeps at least one position."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name} has dtype {got}, must be a torch.bool tensor, True at real tokens")
    check_shape(name, mask, tuple(shape), f"{tuple(shape)}")
    if due(mask):
        require(bool(mask.any()), f"{name} is False everywhere, must keep at least one token")


def check_padding(x: Tensor, mask: Tensor | None) -> None:
    """Raise unless the padding mask of tokens ``x``, if there is one, is bool, of their shape and
    on their device.
    """
    if mask is not None:
        check_mask("mask", mask, x.shape)
        check_devices(x=x, mask=mask)


def check_given(x: Tensor, mask: Tensor | None, given: Tensor | None) -> None:
    """Raise unless the given tokens of ``x``, if there are any, are marked by bool, in the shape of
    ``x`` and on its device, none of them at padding.
    """
    if given is None:
        return
    if not isinstance(given, Tensor) or given.dtype != torch.bool:
        got = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise TypeError(f"given has dtype {got}, must be a torch.bool tensor, True at given tokens")
    check_shape("given", given, x.shape, f"that of x, {tuple(x.shape)}")
    check_devices(x=x, given=given)
    if mask is not None and due(given):
        padding = given & ~mask
        if bool(padding.any()):
            where = [int(i) for i in padding.nonzero()[0]]
            refuse(f"given{where} is True at padding, must be False where mask is False")


def check_devices(**tensors: Tensor | None) -> None:
    """Raise ValueError unless all given tensors are on one device."""
    devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    require(
        len({(d.type, d.index) for d in devices.values()}) <= 1,
        "all tensors must be on one device, got "
        + ", ".join(f"{name} on {d}" for name, d in devices.items()),
    )


def check_number(name: str, value: float, low: float, high: float, rule: str) -> float:
    """Return ``float(value)`` if it is a finite number in [low, high], else raise with ``rule`` in
    the message.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}, must be a number {rule}")
    require(math.isfinite(value) and low <= value <= high, f"{name} is {value}, must be {rule}")
    return float(value)


def check_count(name: str, value: int, least: int = 1) -> int:
    """Return ``int(value)`` if it is an integer of at least ``least``, else raise."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r}, must be an int of at least {least}")
    require(value >= least, f"{name} is {value}, must be at least {least}")
    return int(value)


def check_flag(name: str, value: bool) -> bool:
    """Return ``value`` if it is True or False, else raise: a number is another argument's."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, must be True or False")
    return value
