"""Plots of functions of time: schedules, occupancies, loss weights."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.plot.axes import TIME_LABEL, Axes, axes_or_new, dress
from ddlib.plot.colors import BLUE, Band, band_of, bands
from ddlib.processes import ForwardProcess
from ddlib.processes.broadcasting import interior
from ddlib.schedules import Schedule
from ddlib.typing import HasLevelWeights, Times
from ddlib.utils.validation import check_count

_PROBES = 32
"""Largest number of tokens, and of states, over which curves of a process without levels are
averaged.
"""
_ENTRIES = 2**22
"""Largest number of tensor entries at a time, over token, state, state and time."""


class Series(NamedTuple):
    """A curve: its band and its values (B,) in float64."""

    band: Band
    values: Tensor


def occupancy_series(
    process: ForwardProcess, t: Times, names: Sequence[str] | None = None
) -> list[Series]:
    """Compute the probability of each band at times ``t``.

    Those of the levels, or of clean token, another token and mask.

    If the noise depends on the token, as in ``RateMatrix``, it is the mean over tokens, or over 32
    of them.

    Args:
        process: any forward process.
        t: (B,) in [0, 1].
        names: names of the bands, see ``bands``.

    Raises:
        TypeError, ValueError: as ``bands``.
    """
    groups = bands(process, names)
    t = t.to(process.device, torch.float64)
    if isinstance(process, HasLevelWeights):
        values = process.occupancies(t)
    else:
        values = _masses(process, t).sum(0)[:, : len(groups)]
    return [Series(band, values[:, i]) for i, band in enumerate(groups)]


def weight_series(
    process: ForwardProcess, t: Times, names: Sequence[str] | None = None
) -> list[Series]:
    """Compute the loss weight at times ``t``, per unit of time, for each band where it is not
    always zero.

    With levels this is :math:`w_i(t)`, the weight of predicting the ancestor in level i - 1.
    Otherwise it is the mean of ``process.loss_weight`` given the band; if it depends on token and
    state, over all or over 32 of each.

    Args:
        process: any forward process.
        t: (B,) in [0, 1]; 0 and 1, where weights may be infinite, are moved inside by a rounding
            error.
        names: names of the bands, see ``bands``.

    Raises:
        TypeError, ValueError: as ``bands``.
    """
    groups = bands(process, names)
    t = interior(t.to(process.device))
    if isinstance(process, HasLevelWeights):
        values = process.weights(t)
        groups = groups[:1] + [
            upper._replace(name=f"{upper.name} → {lower.name}") for lower, upper in pairwise(groups)
        ]
    else:
        values = _mean_weights(process, t, len(groups))
    curves = [Series(band, values[:, i]) for i, band in enumerate(groups)]
    return [curve for curve in curves if bool((curve.values.nan_to_num() > 0).any())]


def occupancies(
    process: ForwardProcess,
    axes: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    points: int = 401,
) -> Axes:
    """Plot the state probabilities over time.

    Those of each level, or of clean token, another token and mask.

    Args:
        process: any forward process.
        axes: matplotlib ``Axes`` to draw into; default those of a new figure.
        names: names of the levels, see ``bands``.
        points: number of times in [0, 1], at least 2.

    Returns:
        The axes.

    Raises:
        ModuleNotFoundError: ``axes`` is None and matplotlib is not installed.
        TypeError, ValueError: as ``bands``; ``points`` below 2.
    """
    t = _times(points)
    axes = _draw(axes, t, occupancy_series(process, t, names))
    dress(
        axes,
        "where a token is at time t",
        xlabel=TIME_LABEL,
        ylabel="probability",
        xlim=(0, 1),
        ylim=(0, 1.02),
    )
    axes.legend(loc="upper center")
    return axes


def weights(
    process: ForwardProcess,
    axes: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    points: int = 1001,
    top: float = 10.0,
) -> Axes:
    """Plot the loss weight over time; t = 0 and t = 1, where it may be infinite, are left out.

    Args:
        process: any forward process.
        axes: matplotlib ``Axes`` to draw into; default those of a new figure.
        names: names of the levels, see ``bands``.
        points: number of times in [0, 1], including the two ends that are left out; at least 3.
        top: upper limit of the vertical axis, weight per unit of time.

    Returns:
        The axes.

    Raises:
        ModuleNotFoundError: ``axes`` is None and matplotlib is not installed.
        TypeError, ValueError: as ``bands``; ``points`` below 3.
    """
    t = _times(points, 3)[1:-1]
    axes = _draw(axes, t, weight_series(process, t, names))
    dress(axes, "weight of the loss at time t", xlabel=TIME_LABEL, ylabel="weight per unit of time")
    axes.set(xlim=(0, 1), ylim=(0, top))
    axes.legend(loc="best")
    return axes


def schedule_curve(schedule: Schedule, axes: Axes | None = None, *, points: int = 401) -> Axes:
    """Plot a schedule: the probability alpha(t) that a token of unit speed has not jumped by time
    t.

    Args:
        schedule: the schedule.
        axes: matplotlib ``Axes`` to draw into; default those of a new figure.
        points: number of times in [0, 1], at least 2.

    Returns:
        The axes.

    Raises:
        ModuleNotFoundError: ``axes`` is None and matplotlib is not installed.
        ValueError: ``points`` below 2.
    """
    t = _times(points)
    axes = _draw(axes, t, [Series(Band("alpha", BLUE, "-"), schedule.alpha(t))])
    dress(
        axes,
        "when a token jumps",
        xlabel=TIME_LABEL,
        ylabel="alpha(t), not jumped yet",
        xlim=(0, 1),
        ylim=(0, 1.02),
    )
    return axes


def _draw(axes: Axes | None, t: Tensor, curves: Sequence[Series]) -> Axes:
    axes = axes_or_new(axes)
    for (name, colour, dash), values in curves:
        axes.plot(
            t.tolist(), values.tolist(), color=colour, linewidth=2, linestyle=dash, label=name
        )
    return axes


def _times(points: int, least: int = 2) -> Float64[Tensor, "n"]:
    return torch.linspace(0, 1, check_count("points", points, least), dtype=torch.float64)


def _evenly_spaced(start: int, end: int) -> Tensor:
    """Return the states from ``start`` to ``end`` - 1, or an evenly spaced subset."""
    return (
        torch.linspace(start, end - 1, min(end - start, _PROBES), dtype=torch.float64)
        .round()
        .to(torch.int64)
    )


def _masses(process: ForwardProcess, t: Times) -> Float64[Tensor, "N B 3"]:
    """Compute the probability of position and band, for each field: its own token, another token,
    and no token.
    """
    result = []
    for share, (field, *_) in zip(process.component_shares, process.components, strict=True):
        tokens = _evenly_spaced(0, field.vocab_size).to(t.device).expand(len(t), -1)
        own = field.likelihood(tokens, tokens, t).mean(1)
        beyond = torch.zeros_like(own)
        for state in range(field.vocab_size, field.num_states):
            beyond += field.likelihood(torch.full_like(tokens, state), tokens, t).mean(1)
        result.append(share * torch.stack([own, (1 - own - beyond).clamp_min(0), beyond], 1))
    return torch.stack(result)


def _mean_weights(process: ForwardProcess, t: Times, count: int) -> Float64[Tensor, "B n"]:
    """Compute the mean loss weight given each of ``count`` bands.

    NaN for a band of probability 0.
    """
    fields = [_weights_of_field(field, t, count) for field, *_ in process.components]
    if len(fields) == 1:
        return fields[0]
    weights = torch.stack(fields)
    masses = _masses(process, t)[..., :count]
    counted = (masses > 0) & ~weights.isnan()
    return torch.where(counted, masses * weights, 0).sum(0) / masses.sum(0)


def _weights_of_field(process: ForwardProcess, t: Times, count: int) -> Float64[Tensor, "B n"]:
    tokens = _evenly_spaced(0, process.vocab_size)
    states = torch.cat([tokens, _evenly_spaced(process.vocab_size, process.num_states)])
    x, z = (v.reshape(1, -1).to(t.device) for v in torch.meshgrid(tokens, states, indexing="ij"))
    band = band_of(process, z, x[0])
    means = []
    for times in t.split(max(1, _ENTRIES // (x.numel() * process.num_states))):
        pairs = x.expand(len(times), -1), z.expand(len(times), -1)
        weight = process.loss_weight(*pairs, times)
        chance = process.likelihood(pairs[1], pairs[0], times)
        masses = [chance * (band == i) for i in range(count)]
        means.append(
            torch.stack([(torch.where(m > 0, weight, 0) * m).sum(1) / m.sum(1) for m in masses], 1)
        )
    return torch.cat(means)
