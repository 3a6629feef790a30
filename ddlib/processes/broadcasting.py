"""Times as processes take them: scalars that are checked, and one matrix for each distinct time of a batch."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.schedules import Schedule
from ddlib.times.base import INTERIOR
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_times, require


def beside(values: Tensor, axes: int = 0) -> Tensor:
    """What depends on times, placed so that it broadcasts against tokens (B, L): the one rule for both kinds of times.

    Args:
        values: a function of times (B,), or of times (B, L), elementwise.
        axes: how many axes of its own each value has, behind those of the times.

    Returns:
        (B, 1, ...) for times (B,), (B, L, ...) for times (B, L).

    Example:
        >>> beside(torch.rand(3)).shape, beside(torch.rand(3, 7)).shape, beside(torch.rand(3, 2), 1).shape
        (torch.Size([3, 1]), torch.Size([3, 7]), torch.Size([3, 1, 2]))
    """
    return values[:, None] if values.ndim == 1 + axes else values


def taken(values: Float[Tensor, "*n K"], index: Tokens) -> Float[Tensor, "B L"]:
    """The entry of each position, ``index`` (B, L), of rows that depend on times: (B, K), or (B, L, K)."""
    return values.gather(1, index) if values.ndim == 2 else values.gather(-1, index[..., None]).squeeze(-1)


def through(laws: Float[Tensor, "B L N"], matrices: Float[Tensor, "*n N S"]) -> Float[Tensor, "B L S"]:
    """Each position's row times the matrix of its time: one for each sequence, (B, N, S), or position, (B, L, N, S)."""
    return laws @ matrices if matrices.ndim == 3 else (laws[..., None, :] @ matrices).squeeze(-2)


def each_time(function: Callable[..., Tensor], *times: Times) -> Tensor:
    """``function`` of scalar times for every sequence, or position, stacked; computed once per distinct time.

    Args:
        function: of one float64 scalar for each of ``times``, returns a tensor of any shape, the same for all.
        times: each (B,) or (B, L); more than one go together, as s and t, and have one shape.

    Returns:
        (B, ...) or (B, L, ...), with the shape of what ``function`` returns.

    Example:
        >>> each_time(lambda t: torch.stack([1 - t, t]), torch.tensor([0.25, 0.5]))
        tensor([[0.7500, 0.2500],
                [0.5000, 0.5000]], dtype=torch.float64)
    """
    matrices, which = _distinct(function, *times)
    return matrices[which]


def rows_at(function: Callable[..., Tensor], index: Tokens, *times: Times) -> Float[Tensor, "B L S"]:
    """Rows of the matrix of each time, without a copy of the matrix for every sequence.

    Args:
        function: of one float64 scalar for each of ``times``, returns (N, S).
        index: (B, L) rows; they are not checked.
        times: each (B,) or (B, L), of one shape.

    Returns:
        (B, L, S).
    """
    matrices, which = _distinct(function, *times)
    return matrices[beside(which), index]


def columns_at(function: Callable[..., Tensor], index: Tokens, *times: Times) -> Float[Tensor, "B L N"]:
    """Columns of the matrix of each time: ``into(each_time(function, *times), index)`` without its copies.

    Args:
        function: of one float64 scalar for each of ``times``, returns (N, S).
        index: (B, L) columns; they are not checked.
        times: each (B,) or (B, L), of one shape.

    Returns:
        (B, L, N).
    """
    matrices, which = _distinct(function, *times)
    return matrices.mT[beside(which), index]


def products_at(p: Float[Tensor, "B L N"], function: Callable[..., Tensor], *times: Times) -> Float[Tensor, "B L S"]:
    """Each position's row times the matrix of its time, in the dtype of ``p``.

    Args:
        p: (B, L, N) rows.
        function: of one float64 scalar for each of ``times``, returns (N, S).
        times: each (B,) or (B, L), of one shape.
    """
    matrices, which = _distinct(function, *times)
    matrices = matrices.to(p.dtype)
    return p @ matrices[0] if len(matrices) == 1 else through(p, matrices[which])


def _distinct(function: Callable[..., Tensor], *times: Times) -> tuple[Tensor, Tensor]:
    """``function`` of each distinct time, stacked, and for every sequence or position which of them is its own."""
    flat = torch.stack([time.to(torch.float64).flatten() for time in times])
    distinct, which = flat.unique(dim=1, return_inverse=True)
    return torch.stack([function(*column) for column in distinct.unbind(1)]), which.view(times[0].shape)


def into(matrices: Float[Tensor, "*n N S"], z: Tokens) -> Float[Tensor, "B L N"]:
    """Columns z of each sequence's matrix: how every state, or word, leads into the states seen.

    Args:
        matrices: (B, N, S) or (B, L, N, S), row = from, as ``each_time(self.transition, s, t)`` gives them.
        z: (B, L) states; they are not checked.

    Returns:
        (B, L, N).

    Example:
        >>> into(torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]), torch.tensor([[1]]))
        tensor([[[0.1000, 0.8000]]])
    """
    columns, row = matrices.mT, torch.arange(len(z), device=z.device)[:, None]
    return columns[row, z] if matrices.ndim == 3 else columns[row, torch.arange(z.shape[1], device=z.device), z]


def span(s: float | Tensor, t: float | Tensor, device: torch.device) -> tuple[Float64[Tensor, ""], Float64[Tensor, ""]]:
    """``s`` and ``t`` as ``scalar`` makes them, checked to be in order: the first line of a ``transition``.

    Raises:
        ValueError: s later than t, one of them outside [0, 1] or no scalar.

    Example:
        >>> span(0.25, 0.5, torch.device("cpu"))
        (tensor(0.2500, dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """
    early, late = scalar(s, "s", device), scalar(t, "t", device)
    require(bool(early <= late), f"s = {float(early)} must be at most t = {float(late)}")
    return early, late


def scalar(t: float | Tensor, name: str, device: torch.device) -> Float64[Tensor, ""]:
    """A time as a float64 scalar on ``device``, checked to lie in [0, 1]: the first line of a ``rate_matrix``.

    Args:
        t: a number or a tensor without axes, in units of the whole time.
        name: what messages call it.
        device: where the process's constants live, ``self.device``.

    Raises:
        ValueError: outside [0, 1], NaN, or a tensor with axes.

    Example:
        >>> scalar(0.25, "t", torch.device("cpu"))
        tensor(0.2500, dtype=torch.float64)
    """
    time = torch.as_tensor(t, dtype=torch.float64, device=device)
    require(time.ndim == 0, f"{name} has shape {tuple(time.shape)}, must be a scalar")
    check_times(name, time[None], 1)
    return time


def interior(t: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Times in float64, kept away from 0 and 1, where rates and odds are infinite, by a rounding error.

    Args:
        t: times of any shape in [0, 1]; they are not checked.

    Example:
        >>> 1 - interior(torch.tensor([0.5, 1.0]))
        tensor([5.0000e-01, 1.1102e-16], dtype=torch.float64)
    """
    return t.to(torch.float64).clamp(*INTERIOR)


def elapsed(schedule: Schedule, s: Float[Tensor, "..."], t: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Time on the clock from ``s`` to ``t``, log alpha(s) - log alpha(t); 0 from an ``s`` at which it has run out.

    What jumps at the rate of the clock has not jumped in between with probability exp(-elapsed).

    Args:
        schedule: the clock.
        s: times of any shape.
        t: times of the same shape, none before its ``s``; they are not checked.

    Example:
        >>> import ddlib as dd
        >>> elapsed(dd.schedules.Linear(), torch.tensor([0.0, 1.0]), torch.tensor([0.5, 1.0]))
        tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    early, late = (schedule.hazard(time.to(torch.float64)) for time in (s, t))
    return torch.where(early.isinf(), 0.0, late - early).clamp_min(0)
