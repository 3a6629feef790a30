"""Descriptions of a process, schedule or hierarchy for ``python -m ddlib show``: tables and
plots.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib import plot
from ddlib.hierarchies import Hierarchy
from ddlib.plot.colors import bands
from ddlib.plot.curves import occupancy_series, weight_series
from ddlib.plot.tree_diagram import edge_text
from ddlib.processes import ForwardProcess
from ddlib.samplers.sampling import sample
from ddlib.schedules import Schedule
from ddlib.utils.validation import require

TIMES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
"""Times at which tables are printed."""
_LENGTH = 8
"""Length of the printed sequence."""

Members = Sequence[Sequence[str]] | None


def describe(
    subject: ForwardProcess | Schedule | Hierarchy, tokens: Sequence[str] | None = None
) -> str:
    """Describe ``subject``: its states and levels, its values at a few times, an example
    trajectory.

    Args:
        subject: a process, schedule or hierarchy.
        tokens: a name for each token.

    Raises:
        TypeError: another kind of object.
        ValueError: the number of names is not the number of tokens.
    """
    members = _members(subject, tokens)
    summary = (inspect.getdoc(type(subject)) or "no description").splitlines()[0]
    parts = [f"{subject!r}\n{summary}"]
    if isinstance(subject, Schedule):
        return "\n\n".join([*parts, _schedule_table(subject)])
    if isinstance(subject, Hierarchy):
        return "\n\n".join([*parts, _levels(subject)])
    parts.append(_states(subject))
    t = torch.tensor(TIMES, dtype=torch.float64)
    for title, curves in (
        ("probability at t", occupancy_series(subject, t)),
        ("weight of the loss at t, per unit of time", weight_series(subject, t)),
    ):
        parts.append(_table(title, {curve.band.name: curve.values for curve in curves}))
    times, states = example(subject, _LENGTH, steps=10)
    text = plot.trajectory_text(subject, times, states, members=members)
    parts.append(
        "an example, from noise to data, where every token is equally likely\n" + _indent(text)
    )
    return "\n\n".join(parts)


def draw(
    subject: ForwardProcess | Schedule | Hierarchy, path: Path, tokens: Sequence[str] | None = None
) -> None:
    """Plot ``subject`` into a file: occupancies, weights, a trajectory and the hierarchy, if
    available.

    Args:
        subject: a process, schedule or hierarchy.
        path: path of the image; its suffix determines the format, such as .png or .svg.
        tokens: a name for each token.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: the file cannot be written.
        TypeError: another kind of object.
        ValueError: the number of names is not the number of tokens; a suffix that matplotlib does
            not support.
    """
    _figure(subject, _members(subject, tokens)).savefig(path)


@torch.no_grad()
def example(
    process: ForwardProcess, length: int, steps: int, seed: int = 0
) -> tuple[Float64[Tensor, "n"], Int64[Tensor, "n L"]]:
    """Draw a trajectory of the process for independent, uniformly distributed tokens, from t = 1 to
    0.

    For such tokens the uniform model is exact, so ``dd.sample`` with it draws the states from their
    exact distribution.

    Args:
        process: any forward process.
        length: number of positions L.
        steps: number of steps, all of the same size.
        seed: seed of the draw.

    Returns:
        The times (steps + 1,), decreasing, and the states (steps + 1, L) at these times.
    """
    times: list[Tensor] = []
    states: list[Tensor] = []

    def keep(step: int, t: Tensor, z: Tensor) -> None:
        times.append(t[0])
        states.append(z[0].clone())

    def all_alike(z: Tensor, t: Tensor) -> Tensor:
        return torch.zeros(*z.shape, process.vocab_size, device=z.device)

    generator = torch.Generator(process.device).manual_seed(seed)
    sample(process, all_alike, (1, length), steps=steps, generator=generator, on_step=keep)
    return torch.stack(times).cpu().to(torch.float64), torch.stack(states).cpu()


def _figure(subject: ForwardProcess | Schedule | Hierarchy, members: Members) -> Any:
    if isinstance(subject, Schedule):
        return plot.schedule_curve(subject).figure
    if isinstance(subject, Hierarchy):
        return plot.hierarchy(subject, members=members).figure
    where = subject.hierarchy
    figure, axes = plot.panels(1, 3) if where is None else plot.panels(2, 2)
    plot.occupancies(subject, axes[0])
    plot.weights(subject, axes[1])
    plot.trajectory(subject, *example(subject, 48, steps=200), axes[2])
    if where is not None:
        plot.hierarchy(where, axes[3], members=members, most=20)
    figure.suptitle(fill(repr(subject), 120))
    return figure


def _members(subject: Any, tokens: Sequence[str] | None) -> Members:
    if not isinstance(subject, ForwardProcess | Schedule | Hierarchy):
        raise TypeError(
            f"subject is {subject!r}, must be a process, schedule or hierarchy of ddlib"
        )
    if tokens is None or isinstance(subject, Schedule):
        return None
    require(
        len(tokens) == subject.vocab_size,
        f"tokens has {len(tokens)} names, must have {subject.vocab_size}",
    )
    return [tokens]


def _states(process: ForwardProcess) -> str:
    if process.hierarchy is not None:
        return _levels(process.hierarchy)
    beyond = process.num_states - process.vocab_size
    described = {0: "", 1: f", the mask {process.vocab_size}"}
    more = described.get(beyond, f", others {process.vocab_size}..{process.num_states - 1}")
    sizes = f", of {', '.join(map(str, process.levels[1:]))}" if len(process.levels) > 2 else ""
    return (
        f"{process.num_states} states: tokens 0..{process.vocab_size - 1}{more}; "
        f"{_above(process)}{sizes}"
    )


def _levels(hierarchy: Hierarchy) -> str:
    rows = [("level", "name", "members", "states", "on the way up")]
    for level, band in enumerate(bands(hierarchy)):
        first = hierarchy.offsets[level]
        size = hierarchy.levels[level]
        up = (edge_text(hierarchy, level) or "speed 1") if level < hierarchy.depth else ""
        rows.append(
            (
                str(level),
                band.name,
                str(size),
                f"{first}..{first + size - 1}" if size > 1 else str(first),
                up,
            )
        )
    return (
        f"{hierarchy.num_states} states: tokens and {_above(hierarchy)}, the mask included\n"
        + _columns(rows)
    )


def _above(subject: ForwardProcess | Hierarchy) -> str:
    number = len(subject.levels) - 1
    return f"{number or 'no'} level{'s' * (number != 1)} above"


def _schedule_table(schedule: Schedule) -> str:
    t = torch.tensor(TIMES, dtype=torch.float64)
    values = {
        "alpha": schedule.alpha(t),
        "-d alpha/dt": -schedule.alpha_prime(t),
        "rate": schedule.rate(t),
    }
    return _table(
        "alpha(t), the probability that a token of unit speed has not jumped, and jumps per unit "
        "of time",
        values,
    )


def _table(title: str, curves: Mapping[str, Tensor]) -> str:
    rows = [("t", *(f"{t:g}" for t in TIMES))]
    rows += [
        (name, *(f"{value:.4g}" for value in values.tolist())) for name, values in curves.items()
    ]
    return f"{title}\n" + _columns(rows)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return _indent("\n".join(lines))


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
