"""Figure of the quickstart: occupancies, loss weights, learning curves, a denoising trajectory."""

from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

import ddlib as dd
from ddlib import plot
from ddlib.plot import GREEN, GREY, VERMILION

MODEL_COLOURS = {"masked": GREEN, "hierarchical": VERMILION}


@dataclass
class Curve:
    """Losses and bounds of a training run, in nats per token."""

    loss: list[float] = field(default_factory=list)
    """Training loss of every step, weights clipped."""
    bound: list[tuple[int, float]] = field(default_factory=list)
    """(step, validation bound) at a few steps, weights not clipped."""


def smoothed(values: list[float], span: int) -> np.ndarray:
    """Compute the running mean over the last ``span`` values, or as many as there are."""
    total = np.cumsum(np.concatenate([[0.0], values]))
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - span, 0)
    return (total[end] - total[start]) / (end - start)


def draw_weights(
    axes: Axes, process: dd.processes.Hierarchical, masked: dd.processes.Hierarchical, clip: float
) -> None:
    """Draw the weights of both processes over time, and the clip of training."""
    t = torch.linspace(0, 1, 1001, dtype=torch.float64)[1:-1]
    plot.weights(process, axes)
    axes.plot(
        t, masked.weights(t).numpy()[:, 1], color=GREEN, linewidth=2, label="masked: mask → token"
    )
    axes.axhline(clip, color=GREY, linewidth=1, linestyle=":", label="clip in training")
    axes.legend(loc="upper center")


def draw_curves(axes: Axes, curves: dict[str, Curve], baseline: float) -> None:
    """Draw training losses and validation bounds over the steps, and the bound of a unigram
    model.
    """
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
        axes.plot(
            *points.T,
            color=colour,
            linewidth=2,
            marker=marker,
            markersize=4,
            label=f"{name}: validation bound",
        )
    axes.axhline(
        baseline, color=GREY, linewidth=1, linestyle=":", label="unigram model, validation"
    )
    axes.set(xlabel="step", ylabel="nats per token")
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False, fontsize="small"
    )


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
        process: with tokens, clusters and the mask.
        masked: the process it is compared with.
        weight_clip: largest loss weight in training.
        curves: of both models, by name.
        baseline: nats per token of a unigram model on the validation text.
        trace: (t, levels (L,)) of one sample of ``process``, from noise to data.
    """
    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titleweight": "bold",
    }
    with matplotlib.rc_context(style | {"legend.framealpha": 0.9, "axes.titlelocation": "left"}):
        figure = Figure(figsize=(12, 8.5), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        (a, b), (c, d) = figure.subplots(2, 2)
        plot.occupancies(process, a)
        draw_weights(b, process, masked, weight_clip)
        draw_curves(c, curves, baseline)
        times = torch.tensor([t for t, _ in trace])
        levels = torch.stack([levels for _, levels in trace])
        plot.image(times, levels, plot.bands(process), d)
        titles = (
            "where a token is at time t",
            "weight of the loss at time t",
            "learning",
            "a sample as it denoises",
        )
        for panel, letter, title in zip((a, b, c, d), "abcd", titles, strict=True):
            panel.set_title(f"({letter}) {title}")
        figure.savefig(path)
