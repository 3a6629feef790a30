"""Times as processes take them: scalars that are checked, and one matrix for each distinct time of a batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from ddlib.checks import check_times, require
from ddlib.typing import Tokens

INTERIOR = (1e-16, 1 - 2**-53)
"""Rates and bounds are evaluated no closer than this to the ends of time, where they may be infinite."""


def each_time(function: Callable[..., Tensor], *times: Tensor) -> Tensor:
    """``function`` of scalar times for every sequence, stacked; computed once per distinct time."""
    distinct, which = torch.stack([time.to(torch.float64) for time in times]).unique(dim=1, return_inverse=True)
    return torch.stack([function(*column) for column in distinct.unbind(1)])[which]


def into(matrices: Tensor, z: Tokens) -> Tensor:
    """Columns z of each sequence's matrix: (B, N, S) and (B, L) give (B, L, N)."""
    return matrices.transpose(1, 2)[torch.arange(len(z), device=z.device)[:, None], z]


def span(s: float | Tensor, t: float | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """``s`` and ``t`` as scalars, checked to be in order."""
    early, late = scalar(s, "s", device), scalar(t, "t", device)
    require(bool(early <= late), f"s = {float(early)} must be at most t = {float(late)}")
    return early, late


def scalar(t: float | Tensor, name: str, device: torch.device) -> Tensor:
    """``t`` as a float64 scalar on ``device``, checked to lie in [0, 1]."""
    time = torch.as_tensor(t, dtype=torch.float64, device=device)
    require(time.ndim == 0, f"{name} has shape {tuple(time.shape)}, must be a scalar")
    check_times(name, time[None], 1)
    return time


def interior(t: Tensor) -> Tensor:
    """``t`` in float64, kept away from the ends of time, where rates and odds are infinite, by a rounding error."""
    return t.to(torch.float64).clamp(*INTERIOR)
