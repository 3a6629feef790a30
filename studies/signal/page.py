"""Tables and figure of docs/studies/signal.md, from the result file of ``studies.signal.run``."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddlib import plot
from studies.page import Page

PROCESSES = ("MDLM", "GIDD(0.1)", "HDLM-64", "HDLM-64-8")
TODAY = "strata"
BEST = "density, balanced"
TARGETS = {"MDLM": 0.7, "GIDD(0.1)": 0.25, "HDLM-64": 0.4}
"""Targets of the bound's deviation, over the error reported before errors took account of the
strata.
"""
REPEATS = 2000
"""Number of bootstrap samples."""
ENDS = torch.tensor([0.05, 0.95], dtype=torch.float64)
"""Ends of the middle 90 % of them."""


def deviation(bounds: Tensor) -> Tensor:
    """Return the standard deviation of the bound over the sets of texts, (..., sets) to (...)."""
    return bounds.std(-1)


def blind(variances: Tensor, texts: int) -> Tensor:
    """Return the error if strata are taken for independent times, from the variances within sets,
    (..., sets).
    """
    return (variances.mean(-1) / texts).sqrt()


def spread(distances: Tensor) -> Tensor:
    """Return the root of the trace of the gradient's covariance, from distances to the mean, (...,
    gradients).
    """
    return (distances.square().sum(-1) / (distances.shape[-1] - 1)).sqrt()


def resampled(count: int) -> Tensor:
    """Return the indices of the bootstrap, (REPEATS, count): the same for all ways, which saw the
    same texts.
    """
    return torch.randint(count, (REPEATS, count), generator=torch.Generator().manual_seed(0))


class Bootstrapped:
    """A statistic of a list of estimates, and its distribution over bootstrap samples of the
    list.
    """

    def __init__(
        self, values: list[float], statistic: Callable[[Tensor], Tensor], scale: float = 1.0
    ) -> None:
        estimates = torch.tensor(values, dtype=torch.float64)
        self.value = scale * float(statistic(estimates))
        self.repeats = scale * statistic(estimates[resampled(len(values))])

    def over(self, other: "Bootstrapped") -> str:
        """Format the ratio to another statistic of the same texts."""
        return interval(self.value / other.value, self.repeats / other.repeats)

    def __str__(self) -> str:
        return interval(self.value, self.repeats)


def interval(value: float, repeats: Tensor) -> str:
    """Format a value and the middle 90 % of its bootstrap samples."""
    low, high = repeats.quantile(ENDS).tolist()
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


class Point:
    """Measurements of a process at a point of training, brought to estimates from a thousand
    tokens.

    Args:
        found: an entry of the result file.
        sizes: the sizes of the measurement.
    """

    def __init__(self, found: dict[str, Any], sizes: dict[str, int]) -> None:
        self.process, self.millions, self.ways = found["process"], found["millions"], found["ways"]
        self.head = f"| {self.process} | {self.millions:g} |"
        self.texts, self.rows = sizes["texts"], sizes["rows"]
        self.thousands = sizes["length"] / 1000

    def bound(self, way: str) -> Bootstrapped:
        """Return the deviation of the bound in nats per token."""
        return Bootstrapped(
            self.ways[way]["bounds"], deviation, math.sqrt(self.texts * self.thousands)
        )

    def blind(self) -> Bootstrapped:
        """Return the error of the present draws if strata are taken for independent times."""
        error = partial(blind, texts=self.texts)
        return Bootstrapped(
            self.ways[TODAY]["variances_within"], error, math.sqrt(self.texts * self.thousands)
        )

    def gradient(self, way: str) -> Bootstrapped:
        """Return the deviation of the gradient over its norm."""
        found = self.ways[way]
        return Bootstrapped(
            found["gradient_distances"],
            spread,
            math.sqrt(self.rows * self.thousands) / found["gradient"],
        )

    def spread(self, way: str) -> Bootstrapped:
        """Return the deviation of the gradient."""
        return Bootstrapped(self.ways[way]["gradient_distances"], spread)


def table(points: list[Point], cell: Callable[[Point, str], str]) -> list[str]:
    """Return a row for every process and point of training, a column for every way that was
    measured.
    """
    ways = list(points[0].ways)
    lines = [
        f"| process | million tokens | {' | '.join(ways)} |",
        "| --- | --- |" + " --- |" * len(ways),
    ]
    return lines + [
        f"{point.head} {' | '.join(cell(point, way) for way in ways)} |" for point in points
    ]


def of_gradient(point: Point, way: str) -> str:
    """Format the gradient's deviation over its norm; beside it, over that of the present way: the
    norm is uncertain.
    """
    shown = f"{point.gradient(way).value:.1f}"
    return shown if way == TODAY else f"{shown}; {point.spread(way).over(point.spread(TODAY))}"


def gains(points: list[Point]) -> list[str]:
    """Return the ratio of the best way to the reported error, and to the actual one."""
    lines = [
        "| process | million tokens | blind error of strata | best, over it | target | best, over "
        "strata | texts |",
        "| --- |" + " --- |" * 6,
    ]
    for point in points:
        best, reported, target = point.bound(BEST), point.blind(), TARGETS.get(point.process)
        lines.append(
            f"{point.head} {reported} | {best.over(reported)} | "
            f"{'-' if target is None else f'{target:g}'} | "
            f"{best.over(point.bound(TODAY))} | 1 in {(reported.value / best.value) ** 2:.0f} |"
        )
    return lines


def points_of(results: dict[str, Any]) -> list[Point]:
    """Return the points of a result file in the order of the page."""
    points = [Point(found, results["sizes"]) for found in results["points"]]
    return sorted(points, key=lambda point: (PROCESSES.index(point.process), point.millions))


def tables(results: dict[str, Any]) -> str:
    """Return all three tables, as they stand between the page's marks."""
    points = points_of(results)
    parts = [
        (
            "Bound, standard deviation in nats per token from 1,000 tokens:",
            table(points, lambda point, way: str(point.bound(way))),
        ),
        (
            "Remaining error with density and balanced levels (texts: number for the same error "
            "as reported before):",
            gains(points),
        ),
        (
            "Gradient, standard deviation from 1,000 tokens over its norm; over that of strata:",
            table(points, of_gradient),
        ),
    ]
    return "\n\n".join(f"{title}\n\n" + "\n".join(lines) for title, lines in parts)


def draw(results: dict[str, Any], images: Path) -> None:
    """Draw deviations after the longest training, a group of points for each process."""
    points = points_of(results)
    last, ways = max(point.millions for point in points), list(points[0].ways)
    figure, panels = plot.panels(1, 2, size=(5.2, 4.0))
    colours = dict(zip(PROCESSES, (plot.DARK, plot.VERMILION, plot.BLUE, plot.GREEN), strict=True))
    measured = (
        (Point.bound, "bound", "nats per token"),
        (Point.gradient, "gradient", "multiples of its norm"),
    )
    for panel, (value, title, unit) in zip(panels, measured, strict=True):
        for name, colour in colours.items():
            (point,) = (p for p in points if p.process == name and p.millions == last)
            found = [value(point, way) for way in ways]
            panel.plot(
                [known.value for known in found],
                range(len(ways)),
                "o-",
                color=colour,
                label=name,
                linewidth=1,
            )
            for row, known in enumerate(found):
                panel.plot(
                    known.repeats.quantile(ENDS), [row, row], color=colour, linewidth=3, alpha=0.3
                )
        panel.set_yticks(range(len(ways)), ways)
        panel.invert_yaxis()
        panel.set(
            xlabel=f"standard deviation from 1,000 tokens,\n{unit}",
            ylabel="draw of times and noise",
        )
        panel.set_title(title, loc="left", fontweight="bold")
    panels[0].set_xscale("log")
    panels[0].set_xticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    panels[0].minorticks_off()
    panels[1].set_xlim(left=0)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    figure.savefig(images / "signal.png")


PAGE = Page("studies/signal", "studies/signal/page.py", tables, draw)
