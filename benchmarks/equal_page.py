"""Tables and figure of docs/children.md, from the output of ``equal_compute.py report``.

    python -m benchmarks.equal_page benchmarks/results/equal_compute.json

Rewrites the part of the page between its two marks, and docs/images/children.png.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.equal_compute import RUNS, SECONDS
from benchmarks.table import DOCS, fill, measure, result
from ddlib import plot

BEGIN, END = "<!-- tables: benchmarks/equal_page.py -->", "<!-- end of tables -->"
PAIRS = (
    ("MDLM, children", "MDLM, words", "masks: children less words"),
    ("HDLM, children", "HDLM, words", "two levels: children less words"),
    ("HDLM, words", "MDLM, words", "words: two levels less masks"),
    ("HDLM, children", "MDLM, children", "children: two levels less masks"),
    ("HDLM, three levels, children", "HDLM, children", "children: three levels less two"),
    ("MDLM, children, as many steps", "MDLM, words", "masks, equal steps: children less words"),
    ("HDLM, children, as many steps", "HDLM, words", "two levels, equal steps: children less words"),
)
"""Compared runs: their difference over the same windows."""
Runs = dict[str, list[dict[str, Any]]]


def price(results: dict[str, Any], name: str) -> float:
    """Return the CPU seconds of one step."""
    prices: dict[str, float] = results["speed"]["seconds_per_step"]
    return prices[name.removesuffix(", as many steps")]


def bounds(results: dict[str, Any], runs: Runs) -> list[str]:
    """Return the table of every run with its price, its steps and its bound, seed by seed."""
    lines = ["| run | CPU seconds a step | steps | nats per token, each seed |", "| --- | --- | --- | --- |"]
    for name, seeds in runs.items():
        values = ", ".join(measure(run["bound"]) for run in seeds)
        lines.append(f"| {name} | {price(results, name):.3f} | {seeds[0]['steps']:,} | {values} |")
    return lines


def differences(runs: Runs) -> list[str]:
    """Return the table of comparisons, seed by seed."""
    lines = ["| difference | nats per token, each seed |", "| --- | --- |"]
    for one, other, label in PAIRS:
        lines.append(f"| {label} | {', '.join(measure(run['less'][other], '+') for run in runs[one])} |")
    return lines


def sources(runs: Runs) -> list[str]:
    """Return the table by source, the mean of the seeds."""
    names = list(next(iter(runs.values()))[0]["by_source"])
    lines = [f"| run | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    for name, seeds in runs.items():
        cells = [sum(run["by_source"][source]["value"] for run in seeds) / len(seeds) for source in names]
        lines.append(f"| {name} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    return lines


def draw(results: dict[str, Any], runs: Runs, path: Path) -> None:
    """Draw curves over CPU seconds, also in a separate figure, and over steps for runs with equal steps."""
    figure, (left, right) = plot.panels(1, 2, size=(5.6, 4.2))
    colours = [plot.DARK, plot.VERMILION, "#56B4E9", plot.BLUE, plot.GREEN, plot.ORANGE, "#8CD3A8"]
    for (name, seeds), colour in zip(runs.items(), colours, strict=True):
        style = dict(color=colour, markersize=3, label=name)
        for run in seeds:
            curve = [(point["steps"], point["nats_per_token"]) for point in run["curve"]]
            end = (run["steps"], run["bound"]["value"])
            if not RUNS[name].equal_steps_of:
                _path(left, curve, end, price(results, name), style)
            if RUNS[name].equal_steps_of or RUNS[name].head is None:
                _path(right, curve, end, 1.0, style)
            style["label"] = "_"
    for axes, label, title in (
        (left, "CPU seconds", f"equal compute: {SECONDS:.0f} s"),
        (right, "step", "equal steps"),
    ):
        axes.set(xlabel=label, ylabel="held-out bound, nats per token")
        axes.set_title(f"{title}, two seeds", loc="left", fontweight="bold")
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
    figure.draw_without_rendering()
    alone = left.get_tightbbox().transformed(figure.dpi_scale_trans.inverted()).padded(0.08)
    figure.savefig(path.with_name("equal.png"), bbox_inches=alone)  # the left panel, for README.md


def _path(
    axes: Any, curve: list[tuple[int, float]], end: tuple[int, float], price: float, style: dict[str, Any]
) -> None:
    """Draw a curve of few windows, and separately its end, of all windows."""
    steps, nats = zip(*curve, strict=True)
    axes.plot([price * step for step in steps], nats, "o-", **style)
    axes.plot(price * end[0], end[1], "D", color=style["color"], markersize=5)


def tables(results: dict[str, Any], runs: Runs) -> str:
    """Return all three tables, as they stand between the page's marks."""
    parts: Sequence[list[str]] = (bounds(results, runs), differences(runs), sources(runs))
    return "\n\n".join("\n".join(part) for part in parts)


def main() -> None:
    """Run the command."""
    results = result(__doc__)
    runs = {name: [run for run in results["runs"] if run["run"] == name] for name in RUNS}
    fill(DOCS / "children.md", tables(results, runs), BEGIN, END)
    draw(results, runs, DOCS / "images" / "children.png")


if __name__ == "__main__":
    main()
