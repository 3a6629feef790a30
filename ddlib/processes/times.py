"""Times as processes take them: scalars that are checked, and one matrix for each distinct time of a batch."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.checks import check_times, require
from ddlib.schedules import Schedule
from ddlib.times.base import INTERIOR
from ddlib.typing import Tokens


def each_time(function: Callable[..., Tensor], *times: Float[Tensor, "B"]) -> Tensor:
    """``function`` of scalar times for every sequence, stacked; computed once per distinct time.

    Args:
        function: of one float64 scalar for each of ``times``, returns a tensor of any shape, the same for all.
        times: each (B,); more than one go together, as s and t.

    Returns:
        (B, ...), with the shape of what ``function`` returns.

    Example:
        >>> each_time(lambda t: torch.stack([1 - t, t]), torch.tensor([0.25, 0.5]))
        tensor([[0.7500, 0.2500],
                [0.5000, 0.5000]], dtype=torch.float64)
    """
    distinct, which = torch.stack([time.to(torch.float64) for time in times]).unique(dim=1, return_inverse=True)
    return torch.stack([function(*column) for column in distinct.unbind(1)])[which]


def into(matrices: Float[Tensor, "B N S"], z: Tokens) -> Float[Tensor, "B L N"]:
    """Columns z of each sequence's matrix: how every state, or word, leads into the states seen.

    Args:
        matrices: (B, N, S), row = from, as ``each_time(self.transition, s, t)`` gives them.
        z: (B, L) states; they are not checked.

    Returns:
        (B, L, N).

    Example:
        >>> into(torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]), torch.tensor([[1]]))
        tensor([[[0.1000, 0.8000]]])
    """
    return matrices.transpose(1, 2)[torch.arange(len(z), device=z.device)[:, None], z]


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
