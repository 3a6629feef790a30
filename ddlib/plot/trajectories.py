"""Plots of trajectories: the states of one sequence over time."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ddlib.plot.axes import Axes, axes_or_new, dress
from ddlib.plot.colors import Band, band_of, bands, state_names
from ddlib.processes import ForwardProcess
from ddlib.utils.validation import check_tokens, require


def trajectory(
    process: ForwardProcess,
    times: Float[Tensor, "n"],
    states: Int64[Tensor, "n L"],
    axes: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
) -> Axes:
    """Plot the states of one sequence over time: levels, or clean token, another token and mask.

    The clean token of a position is its state at the smallest time.

    Args:
        process: the process of the states.
        times: (n,) increasing or decreasing, at least two, as passed to ``on_step`` of
            ``dd.sample``.
        states: (n, L) int64, the states at each time.
        axes: matplotlib ``Axes`` to draw into; default those of a new figure.
        names: names of the levels, see ``bands``.

    Returns:
        The axes.

    Raises:
        ModuleNotFoundError: ``axes`` is None and matplotlib is not installed.
        TypeError, ValueError: as ``bands``; states out of range; as ``image``.
    """
    groups = bands(process, names)
    check_tokens("states", states, process.num_states, "states")
    require(len(times) == len(states), f"states has {len(states)} rows for {len(times)} times")
    return image(times, band_of(process, states, states[int(times.argmin())]), groups, axes)


def image(
    times: Float[Tensor, "n"],
    values: Int64[Tensor, "n L"],
    kinds: Sequence[Band],
    axes: Axes | None = None,
) -> Axes:
    """Plot band indices over position and time, one column per position.

    Args:
        times: (n,) increasing or decreasing, at least two.
        values: (n, L) int64, the index of a band.
        kinds: name and colour of each band.
        axes: matplotlib ``Axes`` to draw into; default those of a new figure.

    Returns:
        The axes.

    Raises:
        ModuleNotFoundError: ``axes`` is None and matplotlib is not installed.
        ValueError: times that are not monotonic; a number of rows that is not the number of times;
            an index without a band.
    """
    steps = times.diff()
    require(
        len(times) > 1 and bool((steps > 0).all() or (steps < 0).all()),
        "times must be strictly increasing or decreasing, at least two",
    )
    check_tokens("values", values, len(kinds), "numbers of bands")
    require(len(times) == len(values), f"values has {len(values)} rows for {len(times)} times")
    axes = axes_or_new(axes)
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    edges = torch.cat([times[:1], (times[1:] + times[:-1]) / 2, times[-1:]])
    length = values.shape[1]
    axes.pcolormesh(
        list(range(length + 1)),
        edges.tolist(),
        values.tolist(),
        cmap=ListedColormap([band.colour for band in kinds]),
        norm=BoundaryNorm([i - 0.5 for i in range(len(kinds) + 1)], len(kinds)),
        rasterized=True,
    )
    dress(
        axes, "a sequence over time", xlabel="position in the sequence", ylabel="t  (noise → data)"
    )
    axes.set(xlim=(0, length), ylim=(1, 0))
    handles = [Patch(color=band.colour, label=band.name) for band in kinds]
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.17),
        ncols=min(len(handles), 4),
        frameon=False,
    )
    return axes


def trajectory_text(
    process: ForwardProcess,
    times: Float[Tensor, "n"],
    states: Int64[Tensor, "n L"],
    *,
    members: Sequence[Sequence[str]] | None = None,
) -> str:
    """Format the states of one sequence over time, one line per time, in columns.

    Args:
        process: the process of the states.
        times: (n,) in any order.
        states: (n, L) int64, the states at each time.
        members: names of tokens and clusters, see ``state_names``.

    Raises:
        ValueError: states out of range; a number of rows that is not the number of times; as
            ``state_names``.

    Example:
        >>> import ddlib as dd, torch
        >>> process = dd.presets.mdlm(2)
        >>> times, states = torch.tensor([1.0, 0.5]), torch.tensor([[2, 2], [0, 2]])
        >>> print(trajectory_text(process, times, states, members=[["cat", "sat"]]))
        t = 1.000  mask  mask
        t = 0.500  cat   mask
    """
    check_tokens("states", states, process.num_states, "states")
    require(len(times) == len(states), f"states has {len(states)} rows for {len(times)} times")
    names = state_names(process, members)
    rows = [[names[state] for state in cast(list[int], row)] for row in states.tolist()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for t, row in zip(times.tolist(), rows, strict=True):
        cells = "  ".join(name.ljust(width) for name, width in zip(row, widths, strict=True))
        lines.append(f"t = {t:.3f}  {cells}".rstrip())
    return "\n".join(lines)
