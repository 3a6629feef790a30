"""Tables and figure of docs/signal.md, from the result file of ``benchmarks.signal``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.table import Page
from ddlib import plot

PROCESSES = ("MDLM", "GIDD(0.1)", "HDLM-64", "HDLM-64-8")
TODAY = "strata"
BEST = "density, balanced"
TARGETS = {"MDLM": 0.7, "GIDD(0.1)": 0.25, "HDLM-64": 0.4}
"""Targets of the bound's deviation, over the error reported before errors took account of the strata."""
Point = dict[str, Any]
Cell = Callable[[Point, str], str]


def deviation(point: Point, way: str) -> float:
    """Return the deviation of the bound, in nats per token, from a thousand tokens."""
    return point["ways"][way]["deviation"]


def noise(point: Point, way: str) -> float:
    """Return the deviation of the gradient from a thousand tokens, over its norm."""
    found = point["ways"][way]
    return found["gradient_deviation"] / found["gradient"]


def blind(point: Point) -> float:
    """Return the error of the present draws if strata are taken for independent times."""
    return point["ways"][TODAY]["blind"]


def of_bound(point: Point, way: str) -> str:
    """Format the bound's deviation."""
    return f"{deviation(point, way):.3f}"


def of_gradient(point: Point, way: str) -> str:
    """Format the gradient's deviation over its norm, and over that of the present way: the norm itself is uncertain."""
    ratio = point["ways"][way]["gradient_deviation"] / point["ways"][TODAY]["gradient_deviation"]
    return f"{noise(point, way):.1f} ({ratio:.2f})"


def table(points: list[Point], cell: Cell) -> list[str]:
    """Return a row for every process and point of training, a column for every way that was measured."""
    ways = list(points[0]["ways"])
    lines = [f"| process | million tokens | {' | '.join(ways)} |", "| --- | --- |" + " --- |" * len(ways)]
    for point in points:
        cells = " | ".join(cell(point, way) for way in ways)
        lines.append(f"| {point['process']} | {point['millions']:g} | {cells} |")
    return lines


def gains(points: list[Point]) -> list[str]:
    """Return the ratio of the best way to the reported error, and to the actual one."""
    lines = [
        "| process | million tokens | blind error of strata | best, over it | target | best, over strata | texts |",
        "| --- |" + " --- |" * 6,
    ]
    for point in points:
        best, reported, made = deviation(point, BEST), blind(point), deviation(point, TODAY)
        target = TARGETS.get(point["process"])
        lines.append(
            f"| {point['process']} | {point['millions']:g} | {reported:.3f} | {best / reported:.2f} | "
            f"{'-' if target is None else f'{target:g}'} | {best / made:.2f} | 1 in {(reported / best) ** 2:.0f} |"
        )
    return lines


def tables(results: dict[str, Any]) -> str:
    """Return all three tables, as they stand between the page's marks."""
    points = sorted(results["points"], key=lambda point: (PROCESSES.index(point["process"]), point["millions"]))
    parts = [
        ("Bound, standard deviation in nats per token from 1,000 tokens:", table(points, of_bound)),
        ("What density and balanced levels leave (texts: to the same error as was reported before):", gains(points)),
        (
            "Gradient, standard deviation from 1,000 tokens over its norm (and over that of strata):",
            table(points, of_gradient),
        ),
    ]
    return "\n\n".join(f"{title}\n\n" + "\n".join(lines) for title, lines in parts)


def draw(results: dict[str, Any], images: Path) -> None:
    """Draw deviations after the longest training, a group of points for each process."""
    last, ways = max(point["millions"] for point in results["points"]), list(results["points"][0]["ways"])
    figure, panels = plot.panels(1, 2, size=(5.2, 4.0))
    colours = dict(zip(PROCESSES, (plot.DARK, plot.VERMILION, plot.BLUE, plot.GREEN), strict=True))
    measured = ((deviation, "bound", "nats per token"), (noise, "gradient", "multiples of its norm"))
    for panel, (value, title, unit) in zip(panels, measured, strict=True):
        for name, colour in colours.items():
            (point,) = (p for p in results["points"] if p["process"] == name and p["millions"] == last)
            values = [value(point, way) for way in ways]
            panel.plot(values, range(len(ways)), "o-", color=colour, label=name, linewidth=1)
        panel.set_yticks(range(len(ways)), ways)
        panel.invert_yaxis()
        panel.set(xlabel=f"standard deviation from 1,000 tokens,\n{unit}", ylabel="draw of times and noise")
        panel.set_title(title, loc="left", fontweight="bold")
    panels[0].set_xscale("log")
    panels[0].set_xticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    panels[0].minorticks_off()
    panels[1].set_xlim(left=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(images / "signal.png")


PAGE = Page("signal", "signal_page", tables, draw)
