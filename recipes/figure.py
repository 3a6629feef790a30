"""The quickstart's one figure: occupancies, loss weights, learning curves, a denoising trajectory."""

from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

import ddlib as dd

# Okabe & Ito, "Color universal design" (2008): told apart with every common kind of colour blindness.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#5A5A5A"
LEVEL_COLOURS = (BLUE, ORANGE, "#2B2B2B")
LEVEL_NAMES = ("word", "cluster", "mask")
MODEL_COLOURS = {"masked": GREEN, "hierarchical": "#D55E00"}


@dataclass
class Curve:
    """What a training run leaves for the figure, in nats per token."""

    loss: list[float] = field(default_factory=list)
    """Training loss of every step, weights clipped."""
    bound: list[tuple[int, float]] = field(default_factory=list)
    """(step, validation bound) now and then, weights not clipped."""


def smoothed(values: list[float], span: int) -> np.ndarray:
    """Running mean over the last ``span`` values, or as many as there are."""
    total = np.cumsum(np.concatenate([[0.0], values]))
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - span, 0)
    return (total[end] - total[start]) / (end - start)


def draw_occupancies(axes: Axes, process: dd.processes.Hierarchical) -> None:
    t = torch.linspace(0, 1, 401, dtype=torch.float64)
    shares = process.occupancies(t).numpy()
    for level, (name, colour) in enumerate(zip(LEVEL_NAMES, LEVEL_COLOURS, strict=True)):
        axes.plot(t, shares[:, level], color=colour, linewidth=2, label=name)
    axes.set(
        title="(a) where a token is at time t", xlabel="t  (0 = data, 1 = noise)", ylabel="probability of the level"
    )
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper center")


def draw_weights(
    axes: Axes, process: dd.processes.Hierarchical, masked: dd.processes.Hierarchical, clip: float
) -> None:
    t = torch.linspace(0, 1, 1001, dtype=torch.float64)[1:-1]
    weights = process.weights(t).numpy()
    axes.plot(t, weights[:, 1], color=ORANGE, linewidth=2, label="cluster → word")
    axes.plot(t, weights[:, 2], color=LEVEL_COLOURS[2], linewidth=2, label="mask → cluster")
    axes.plot(t, masked.weights(t).numpy()[:, 1], color=GREEN, linewidth=2, linestyle="--", label="masked: mask → word")
    axes.axhline(clip, color=GREY, linewidth=1, linestyle=":", label="clip in training")
    axes.set(
        title="(b) weight of the loss at time t", xlabel="t  (0 = data, 1 = noise)", ylabel="weight per unit of time"
    )
    axes.set(xlim=(0, 1), ylim=(0, 10))
    axes.legend(loc="upper center")


def draw_curves(axes: Axes, curves: dict[str, Curve], baseline: float) -> None:
    for name, curve in curves.items():
        colour = MODEL_COLOURS[name]
        span = max(len(curve.loss) // 20, 1)
        step = np.arange(1, len(curve.loss) + 1)
        axes.plot(
            step,
            smoothed(curve.loss, span),
            color=colour,
            linewidth=1,
            alpha=0.6,
            label=f"{name}: training loss, clipped",
        )
        points = np.array(curve.bound)
        marker = "o" if name == "masked" else "s"
        axes.plot(*points.T, color=colour, linewidth=2, marker=marker, markersize=4, label=f"{name}: validation bound")
    axes.axhline(baseline, color=GREY, linewidth=1, linestyle=":", label="unigram model, validation")
    axes.set(title="(c) learning", xlabel="step", ylabel="nats per token")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False, fontsize="small")


def draw_trajectory(axes: Axes, times: Float[np.ndarray, " T"], levels: Int[np.ndarray, "T L"]) -> None:
    edges = np.append((times[1:] + times[:-1]) / 2, 0.0)
    colours = ListedColormap(LEVEL_COLOURS)
    grid = np.concatenate([[1.0], edges])
    place = np.arange(levels.shape[1] + 1)
    axes.pcolormesh(place, grid, levels, cmap=colours, norm=BoundaryNorm([-0.5, 0.5, 1.5, 2.5], 3), rasterized=True)
    axes.set(title="(d) a sample as it denoises", xlabel="position in the sequence", ylabel="t  (noise → data)")
    axes.set(xlim=(0, levels.shape[1]), ylim=(1, 0))
    handles = [Patch(color=colour, label=name) for colour, name in zip(LEVEL_COLOURS, LEVEL_NAMES, strict=True)]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, frameon=False)


def write_figure(
    path: Path,
    process: dd.processes.Hierarchical,
    masked: dd.processes.Hierarchical,
    weight_clip: float,
    curves: dict[str, Curve],
    baseline: float,
    trace: list[tuple[float, Tensor]],
) -> None:
    """Draw the four panels into a PNG.

    Args:
        path: of the PNG; its folder must exist.
        process: with words, clusters and the mask.
        masked: the process it is compared with.
        weight_clip: largest loss weight in training.
        curves: of both models, by name.
        baseline: nats per token of a unigram model on the validation text.
        trace: (t, levels (L,)) of one sample of ``process``, from noise to data.
    """
    style = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "bold"}
    with matplotlib.rc_context(style | {"legend.framealpha": 0.9, "axes.titlelocation": "left"}):
        figure = Figure(figsize=(12, 8.5), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        (a, b), (c, d) = figure.subplots(2, 2)
        draw_occupancies(a, process)
        draw_weights(b, process, masked, weight_clip)
        draw_curves(c, curves, baseline)
        draw_trajectory(d, np.array([t for t, _ in trace]), torch.stack([levels for _, levels in trace]).numpy())
        figure.savefig(path)
