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
    Band,
    band_of,
    bands,
    level_names,
    state_names,
)
from ddlib.plot.curves import (
    Series,
    occupancies,
    occupancy_series,
    schedule_curve,
    weight_series,
    weights,
)
from ddlib.plot.trajectories import image, trajectory, trajectory_text
from ddlib.plot.tree_diagram import hierarchy

__all__ = [
    "BLUE",
    "DARK",
    "GREEN",
    "GREY",
    "ORANGE",
    "VERMILION",
    "Band",
    "Series",
    "band_of",
    "bands",
    "hierarchy",
    "image",
    "level_names",
    "occupancies",
    "occupancy_series",
    "panels",
    "schedule_curve",
    "state_names",
    "trajectory",
    "trajectory_text",
    "weight_series",
    "weights",
]
