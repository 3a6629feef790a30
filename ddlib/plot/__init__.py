"""Plots of processes: occupancies, loss weights, trajectories, hierarchies.

Requires matplotlib, ``ddlib[plot]``.

Every function draws into the given matplotlib ``Axes``, or into a new figure, and returns the axes;
``axes.figure.savefig("x.png")`` saves the plot. pyplot and its settings are not changed.
"""

from ddlib.plot.axes import panels
from ddlib.plot.colors import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    level_names,
)
from ddlib.plot.curves import (
    occupancies,
    schedule_curve,
    weights,
)
from ddlib.plot.trajectories import trajectory, trajectory_text
from ddlib.plot.tree_diagram import hierarchy

__all__ = [
    "BLUE",
    "DARK",
    "GREEN",
    "GREY",
    "ORANGE",
    "VERMILION",
    "hierarchy",
    "level_names",
    "occupancies",
    "panels",
    "schedule_curve",
    "trajectory",
    "trajectory_text",
    "weights",
]
