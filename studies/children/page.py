"""Tables and figure of docs/studies/children.md, from the result file of ``studies.children.run``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddlib import plot
from studies.page import Page, measure

SECONDS = 800.0
"""CPU seconds of a run."""
EQUAL_STEPS = ", as many steps"
PAIRS = (
    ("MDLM, child logits", "MDLM, token logits", "masks: child minus token logits"),
    ("HDLM, child logits", "HDLM, token logits", "two levels: child minus token logits"),
    ("HDLM, token logits", "MDLM, token logits", "token logits: two levels minus masks"),
    ("HDLM, child logits", "MDLM, child logits", "child logits: two levels minus masks"),
    (
        "HDLM, three levels, child logits",
        "HDLM, child logits",
        "child logits: three levels minus two",
    ),
    (
        "MDLM, child logits, as many steps",
        "MDLM, token logits",
        "masks, equal steps: child minus token logits",
    ),
    (
        "HDLM, child logits, as many steps",
        "HDLM, token logits",
        "two levels, equal steps: child minus token logits",
    ),
)
"""Compared runs: their difference over the same windows."""
Runs = dict[str, list[dict[str, Any]]]


def price(results: dict[str, Any], name: str) -> float:
    """Return the CPU seconds of one step."""
    prices: dict[str, float] = results["speed"]["seconds_per_step"]
    return prices[name.removesuffix(EQUAL_STEPS)]


def bounds(results: dict[str, Any], runs: Runs) -> list[str]:
    """Return the table of every run with its price, its steps and its bound, seed by seed."""
    lines = [
        "| run | CPU seconds a step | steps | nats per token, each seed |",
        "| --- | --- | --- | --- |",
    ]
    for name, seeds in runs.items():
        values = ", ".join(measure(run["bound"]) for run in seeds)
        lines.append(f"| {name} | {price(results, name):.3f} | {seeds[0]['steps']:,} | {values} |")
    return lines


def differences(runs: Runs) -> list[str]:
    """Return the table of comparisons, seed by seed."""
    lines = ["| difference | nats per token, each seed |", "| --- | --- |"]
    for one, other, label in PAIRS:
        lines.append(
            f"| {label} | {', '.join(measure(run['less'][other], '+') for run in runs[one])} |"
        )
    return lines


def sources(runs: Runs) -> list[str]:
    """Return the table by source, the mean of the seeds."""
    names = list(next(iter(runs.values()))[0]["by_source"])
    lines = [f"| run | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    for name, seeds in runs.items():
        cells = [
            sum(run["by_source"][source]["value"] for run in seeds) / len(seeds) for source in names
        ]
        lines.append(f"| {name} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    return lines


def draw(results: dict[str, Any], images: Path) -> None:
    """Draw curves over CPU seconds, also in a separate figure, and over steps for runs with equal
    steps.
    """
    runs, seconds = by_name(results), results.get("seconds", SECONDS)
    figure, (left, right) = plot.panels(1, 2, size=(5.6, 4.2))
    colours = [plot.DARK, plot.VERMILION, "#56B4E9", plot.BLUE, plot.GREEN, plot.ORANGE, "#8CD3A8"]
    for (name, seeds), colour in zip(runs.items(), colours, strict=True):
        style = dict(color=colour, markersize=3, label=name)
        for run in seeds:
            curve = [(point["steps"], point["nats_per_token"]) for point in run["curve"]]
            end = (run["steps"], run["bound"]["value"])
            if not name.endswith(EQUAL_STEPS):
                _path(left, curve, end, price(results, name), style)
            if name.endswith((EQUAL_STEPS, ", token logits")):
                _path(right, curve, end, 1.0, style)
            style["label"] = "_"
    for axes, label, title in (
        (left, "CPU seconds", f"equal compute: {seconds:g} s"),
        (right, "step", "equal steps"),
    ):
        axes.set(xlabel=label, ylabel="held-out bound, nats per token")
        axes.set_title(f"{title}, two seeds", loc="left", fontweight="bold")
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(images / "children.png")
    figure.draw_without_rendering()
    alone = left.get_tightbbox().transformed(figure.dpi_scale_trans.inverted()).padded(0.08)
    figure.savefig(images / "equal.png", bbox_inches=alone)  # the left panel, for README.md


def _path(
    axes: Any,
    curve: list[tuple[int, float]],
    end: tuple[int, float],
    price: float,
    style: dict[str, Any],
) -> None:
    """Draw a curve of few windows, and separately its end, of all windows."""
    steps, nats = zip(*curve, strict=True)
    axes.plot([price * step for step in steps], nats, "o-", **style)
    axes.plot(price * end[0], end[1], "D", color=style["color"], markersize=5)


def by_name(results: dict[str, Any]) -> Runs:
    """Group the runs by name, seed by seed."""
    return {
        name: [run for run in results["runs"] if run["run"] == name]
        for name in dict.fromkeys(run["run"] for run in results["runs"])
    }


def tables(results: dict[str, Any]) -> str:
    """Return all three tables, as they stand between the page's marks."""
    runs = by_name(results)
    parts: Sequence[list[str]] = (bounds(results, runs), differences(runs), sources(runs))
    return "\n\n".join("\n".join(part) for part in parts)


PAGE = Page("studies/children", "studies/children/page.py", tables, draw)
