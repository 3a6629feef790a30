"""Times of processes: checked scalars, and functions of time that are computed once for each
distinct time.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ddlib.schedules import Schedule
from ddlib.times.base import INTERIOR
from ddlib.typing import Times, Tokens
from ddlib.utils.compilation import disable_compile
from ddlib.utils.precision import product
from ddlib.utils.validation import check_times, require


def unsqueeze_times(values: Tensor, axes: int = 0) -> Tensor:
    """Add the axis of the positions to values of times (B,), so that they broadcast against tokens
    (B, L).

    Values of times (B, L) have that axis and stay as they are.

    Args:
        values: a function of times (B,), or of times (B, L), elementwise.
        axes: number of axes of each value, which follow the axes of the times.

    Returns:
        (B, 1, ...) for times (B,), (B, L, ...) for times (B, L).

    Example:
        >>> unsqueeze_times(torch.rand(3)).shape, unsqueeze_times(torch.rand(3, 7)).shape
        (torch.Size([3, 1]), torch.Size([3, 7]))
        >>> unsqueeze_times(torch.rand(3, 2), axes=1).shape
        torch.Size([3, 1, 2])
    """
    return values[:, None] if values.ndim == 1 + axes else values


def gather_last(values: Float[Tensor, "*n K"], index: Tokens) -> Float[Tensor, "B L"]:
    """Gather the entry ``index`` (B, L) along the last axis of rows per sequence (B, K), or per
    position (B, L, K).
    """
    return (
        values.gather(1, index)
        if values.ndim == 2
        else values.gather(-1, index[..., None]).squeeze(-1)
    )


def multiply_rows(
    rows: Float[Tensor, "B L N"], matrices: Float[Tensor, "*n N S"]
) -> Float[Tensor, "B L S"]:
    """Multiply the row of each position by the matrix of its time: (B, N, S), or (B, L, N, S)."""
    if matrices.ndim == 3:
        return product(rows, matrices)
    return product(rows[..., None, :], matrices).squeeze(-2)


def each_time(function: Callable[..., Tensor], *times: Times) -> Tensor:
    """Evaluate ``function`` of scalar times for every sequence, or position.

    Once per distinct time.

    Args:
        function: of one float64 scalar for each of ``times``, returns a tensor of any shape, the
            same for all.
        times: each (B,) or (B, L), of one shape; several are used together, such as s and t.

    Returns:
        (B, ...) or (B, L, ...), followed by the shape that ``function`` returns.

    Example:
        >>> each_time(lambda t: torch.stack([1 - t, t]), torch.tensor([0.25, 0.5]))
        tensor([[0.7500, 0.2500],
                [0.5000, 0.5000]], dtype=torch.float64)
    """
    matrices, which = _distinct(function, *times)
    return matrices[which]


def rows_at(
    function: Callable[..., Tensor], index: Tokens, *times: Times
) -> Float[Tensor, "B L S"]:
    """Take rows of the matrix of each time, without a copy of the matrix for every sequence.

    Args:
        function: of one float64 scalar for each of ``times``, returns (N, S).
        index: (B, L) rows; they are not checked.
        times: each (B,) or (B, L), of one shape.

    Returns:
        (B, L, S).
    """
    matrices, which = _distinct(function, *times)
    return matrices[unsqueeze_times(which), index]


def products_at(
    p: Float[Tensor, "B L N"], function: Callable[..., Tensor], *times: Times
) -> Float[Tensor, "B L S"]:
    """Multiply the row of each position by the matrix of its time, in the dtype of ``p``.

    With times (B, L) no matrix is copied for a position: positions of one time are multiplied
    together.

    Args:
        p: (B, L, N) rows.
        function: of one float64 scalar for each of ``times``, returns (N, S).
        times: each (B,) or (B, L), of one shape.
    """
    matrices, which = _distinct(function, *times)
    matrices = matrices.to(p.dtype)
    if len(matrices) == 1:
        return product(p, matrices[0])
    if which.ndim == 1:
        return multiply_rows(p, matrices[which])
    result = p.new_empty(*p.shape[:-1], matrices.shape[-1])
    for i, matrix in enumerate(matrices):
        here = which == i
        result[here] = product(p[here], matrix)
    return result


@disable_compile
def _distinct(function: Callable[..., Tensor], *times: Times) -> tuple[Tensor, Tensor]:
    """Return ``function`` of each distinct time, stacked, and the index of each sequence's or
    position's time.
    """
    columns, which = distinct_times(*times)
    return torch.stack([function(*column) for column in zip(*columns, strict=True)]), which


def distinct_times(
    *times: Float[Tensor, "..."],
) -> tuple[list[Float64[Tensor, "N"]], Int64[Tensor, "..."]]:
    """Return the distinct combinations of several times at one place, and the index of each place's
    combination.

    One integer key for each combination is sorted: ``unique(dim=1)`` compares columns one by one,
    which takes four times as long for 512 times and seven times as long for 8,000.

    Args:
        times: tensors of one shape.

    Returns:
        N entries for each of ``times``, in lexicographic order; the indices, in the shape of a
        time.

    Example:
        >>> s = torch.tensor([0.0, 0.5, 0.0])
        >>> (early, late), which = distinct_times(s, torch.tensor([1.0, 0.5, 1.0]))
        >>> early.tolist(), late.tolist(), which.tolist()
        ([0.0, 0.5], [1.0, 0.5], [0, 1, 0])
    """
    sorted_times = []
    key = torch.zeros(times[0].shape, dtype=torch.int64, device=times[0].device)
    for time in times:
        values, place = time.to(torch.float64).unique(return_inverse=True)
        sorted_times.append(values)
        key = key * len(values) + place
    keys, which = key.unique(return_inverse=True)
    columns = []
    for values in reversed(sorted_times):
        columns.append(values[keys % len(values)])
        keys = keys // len(values)
    return columns[::-1], which


def gather_columns(matrices: Float[Tensor, "*n N S"], z: Tokens) -> Float[Tensor, "B L N"]:
    """Gather the columns z of each sequence's matrix: the entries from every state, or token, to
    the state z.

    Args:
        matrices: (B, N, S) or (B, L, N, S), row = from, as ``each_time(self.transition, s, t)``
            returns them.
        z: (B, L) states; they are not checked.

    Returns:
        (B, L, N).

    Example:
        >>> gather_columns(torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]), torch.tensor([[1]]))
        tensor([[[0.1000, 0.8000]]])
    """
    columns = matrices.mT
    row = torch.arange(len(z), device=z.device)[:, None]
    return (
        columns[row, z]
        if matrices.ndim == 3
        else columns[row, torch.arange(z.shape[1], device=z.device), z]
    )


def normalise_or_stay(
    joint: Float[Tensor, "B L S"], z: Tokens, total: Float[Tensor, "B L 1"] | None = None
) -> Float[Tensor, "B L S"]:
    """Normalise joint probabilities of states.

    A state that has probability 0, such as a prompt at t = 1, stays.

    Args:
        joint: (B, L, S) joint probability of z_s and z_t = ``z``.
        z: (B, L) states.
        total: (B, L, 1) their sum if it is known.

    Example:
        >>> normalise_or_stay(torch.tensor([[[0.1, 0.3], [0.0, 0.0]]]), torch.tensor([[0, 1]]))
        tensor([[[0.2500, 0.7500],
                 [0.0000, 1.0000]]])
    """
    total = joint.sum(-1, keepdim=True) if total is None else total
    possible = total > 0
    probs = joint / torch.where(possible, total, 1.0)
    return probs.scatter_add_(-1, z[..., None], (~possible).to(probs.dtype))


def quotient(values: Float[Tensor, "..."], total: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Divide ``values`` by ``total``; 0 where ``total`` is 0, with gradient 0."""
    return torch.where(total > 0, values / torch.where(total > 0, total, 1.0), 0.0)


def span(
    s: float | Tensor, t: float | Tensor, device: torch.device
) -> tuple[Float64[Tensor, ""], Float64[Tensor, ""]]:
    """Convert ``s`` and ``t`` by ``scalar`` and check that s <= t: the first line of a
    ``transition``.

    Raises:
        ValueError: s later than t, or a time that is outside [0, 1] or not a scalar.

    Example:
        >>> span(0.25, 0.5, torch.device("cpu"))
        (tensor(0.2500, dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """
    early = scalar(s, "s", device)
    late = scalar(t, "t", device)
    require(bool(early <= late), f"s = {float(early)} must be at most t = {float(late)}")
    return early, late


def scalar(t: float | Tensor, name: str, device: torch.device) -> Float64[Tensor, ""]:
    """Convert a time to a float64 scalar on ``device``, checked to lie in [0, 1]: the first line of
    a ``rate_matrix``.

    Args:
        t: a number or a tensor without axes, in units of the whole time.
        name: name of the argument in error messages.
        device: device of the process's constants, ``self.device``.

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
    """Return times in float64, clamped by a rounding error from 0 and 1, where rates and odds are
    infinite.

    Args:
        t: times of any shape in [0, 1]; they are not checked.

    Example:
        >>> 1 - interior(torch.tensor([0.5, 1.0]))
        tensor([5.0000e-01, 1.1102e-16], dtype=torch.float64)
    """
    return t.to(torch.float64).clamp(*INTERIOR)


def elapsed(
    schedule: Schedule, s: Float[Tensor, "..."], t: Float[Tensor, "..."]
) -> Float64[Tensor, "..."]:
    """Integrated rate of the schedule from ``s`` to ``t``, log alpha(s) - log alpha(t).

    0 where alpha(s) is 0.

    A chain that jumps at the rate of the schedule has no jump in between with probability
    exp(-elapsed).

    Args:
        schedule: the schedule alpha.
        s: times of any shape.
        t: times of the same shape, each at least its ``s``; they are not checked.

    Example:
        >>> import ddlib as dd
        >>> elapsed(dd.schedules.Linear(), torch.tensor([0.0, 1.0]), torch.tensor([0.5, 1.0]))
        tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    early, late = (schedule.hazard(time.to(torch.float64)) for time in (s, t))
    return torch.where(early.isinf(), 0.0, late - early).clamp_min(0)
