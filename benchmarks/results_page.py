"""The tables and the picture of docs/results.md, from what ``first_results.py evaluate`` wrote.

    python -m benchmarks.results_page benchmarks/results/first_results.json

Rewrites what stands between the two marks of the page, and docs/images/results.png.
"""

import math
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.table import DOCS, fill, measure, result
from ddlib import plot

BEGIN, END = "<!-- tables: benchmarks/results_page.py -->", "<!-- end of tables -->"
PAPER = {
    "MDLM": 27.39,
    "GIDD(0.1)": 25.82,
    "HDLM-1": 25.72,
    "HDLM-8": 24.57,
    "HDLM-64": 23.36,
    "HDLM-64, xi = 0.9": 23.54,
}
"""Validation perplexities of the HDLM paper on OpenWebText, SMALL, 131 billion tokens; its GIDD is GIDD+."""
BASE = "MDLM"
Runs = dict[str, list[dict[str, Any]]]


def by_process(result: dict[str, Any]) -> Runs:
    """The runs of each process, seed by seed."""
    found: Runs = defaultdict(list)
    for run in result["runs"]:
        found[run["process"]].append(run)
    return found


def papers_gain(name: str) -> float | None:
    """Nats per token above MDLM in the paper; None where it has no such model."""
    return math.log(PAPER[name] / PAPER[BASE]) if name in PAPER else None


def whole(runs: Runs) -> list[str]:
    """All sources together, and beside them the paper."""
    lines = [
        "| process | bound, nats/token, each seed | above MDLM, each seed | paper: perplexity | paper: above MDLM |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, seeds in runs.items():
        own = ", ".join(measure(run["all_sources"]) for run in seeds)
        gain = "-" if name == BASE else ", ".join(measure(run["less_mdlm"], sign="+") for run in seeds)
        theirs = papers_gain(name)
        paper = ("-", "-") if theirs is None else (f"{PAPER[name]:.2f}", "-" if name == BASE else f"{theirs:+.3f}")
        lines.append(f"| {name} | {own} | {gain} | {paper[0]} | {paper[1]} |")
    return lines


def sources(runs: Runs) -> list[str]:
    """Source by source, the mean of the seeds."""
    names = list(next(iter(runs.values()))[0]["by_source"])
    lines = ["| process | " + " | ".join(n.replace("_", " ") for n in names) + " |", "| --- |" + " --- |" * len(names)]
    for name, seeds in runs.items():
        cells = [mean(run["by_source"][source]["nats_per_token"]["value"] for run in seeds) for source in names]
        lines.append(f"| {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
    errors = [
        max(run["by_source"][n]["nats_per_token"]["error"] for seeds in runs.values() for run in seeds) for n in names
    ]
    return [*lines, "| *largest standard error* | " + " | ".join(f"{error:.3f}" for error in errors) + " |"]


def tables(runs: Runs) -> str:
    """Both, as they stand between the page's marks."""
    return "\n".join([*whole(runs), "", *sources(runs)])


def draw(runs: Runs, path: Path) -> None:
    """Learning curves, and what each process is above MDLM, here and in the paper."""
    figure, (left, right) = plot.panels(1, 2, size=(5.6, 4.2))
    colours = [plot.DARK, plot.VERMILION, "#56B4E9", plot.BLUE, "#0B3C8C", "#8CD3A8", plot.GREEN, plot.ORANGE]
    for (name, seeds), colour in zip(runs.items(), colours, strict=True):
        for run in seeds:
            step, value, _ = zip(*run["curve"], strict=True)
            left.plot(step, value, "o-", color=colour, markersize=3, label=name if run is seeds[0] else None)
    left.set(xlabel="step", ylabel="nats per token")
    left.set_title("validation bound while training, two seeds", loc="left", fontweight="bold")
    left.legend(frameon=False, fontsize=8)
    others = [name for name in runs if name != BASE]
    for place, name in enumerate(others):
        for shift, run in zip((-0.12, 0.12), runs[name], strict=True):
            gain = run["less_mdlm"]
            given = {"label": "ours, 2 million tokens"} if not place and shift < 0 else {}
            right.errorbar(gain["value"], place + shift, xerr=gain["standard_error"], fmt="o", color=plot.BLUE, **given)
        theirs = papers_gain(name)
        if theirs is not None:
            given = {"label": "paper, 131 billion tokens"} if not place else {}
            right.plot(theirs, place, "D", color=plot.ORANGE, **given)
    right.axvline(0, color=plot.GREY, linewidth=1)
    right.set_yticks(range(len(others)), others)
    right.invert_yaxis()
    right.set(xlabel="nats per token above MDLM (left is better)")
    right.set_title("against masked diffusion", loc="left", fontweight="bold")
    right.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    figure.savefig(path)


def main() -> None:
    """The command."""
    runs = by_process(result(__doc__))
    fill(DOCS / "results.md", tables(runs), BEGIN, END)
    draw(runs, DOCS / "images" / "results.png")


if __name__ == "__main__":
    main()
