"""Tables and figure of docs/studies/blocks.md, from the result file of ``studies.blocks.run``."""

import math
from pathlib import Path
from statistics import mean
from typing import Any

from ddlib import plot
from studies.page import Page

BITS = 1 / math.log(2)
"""Bits per nat."""
Run = dict[str, Any]


def of(runs: list[Run], kind: str, size: int) -> list[Run]:
    """Select the seeds of one cell."""
    return [run for run in runs if run["kind"] == kind and run["size"] == size]


def cell(seeds: list[Run], name: str, sign: str = "") -> str:
    """Format bits per token of each seed, with standard errors."""
    values = [run[name] for run in seeds if name in run]
    return (
        ", ".join(
            f"{v['value'] * BITS:{sign}.3f} ± {v['standard_error'] * BITS:.3f}" for v in values
        )
        or "-"
    )


def kinds_and_sizes(runs: list[Run]) -> tuple[list[str], list[int]]:
    """Return the kinds, masks first, and the sizes, the whole sequence first."""
    kinds, sizes = (list(dict.fromkeys(run[key] for run in runs)) for key in ("kind", "size"))
    return kinds, sizes


def tables(results: dict[str, Any]) -> str:
    """Return a row for every kind and size."""
    runs = results["runs"]
    kinds, sizes = kinds_and_sizes(runs)
    heads = (
        "process",
        "block",
        "bits per token, each seed",
        "minus the whole text",
        "minus MDLM with such blocks",
    )
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for kind in kinds:
        for size in sizes:
            seeds = of(runs, kind, size)
            if not seeds:
                continue
            whole = "-" if size == sizes[0] else cell(seeds, "less_whole_text", "+")
            masks = "-" if kind == kinds[0] else cell(seeds, "less_mdlm", "+")
            lines.append(f"| {kind} | {size} | {cell(seeds, 'bound')} | {whole} | {masks} |")
    return "\n".join(lines)


def draw(results: dict[str, Any], images: Path) -> None:
    """Draw bits per token by the size of a block."""
    runs = results["runs"]
    kinds, sizes = kinds_and_sizes(runs)
    figure, (axis,) = plot.panels(size=(6.0, 4.0))
    places = {size: place for place, size in enumerate(sizes)}
    for kind, colour, shift in zip(kinds, (plot.DARK, plot.BLUE), (-0.05, 0.05), strict=True):
        means = [
            (size, mean(run["bound"]["value"] for run in of(runs, kind, size)))
            for size in sizes
            if of(runs, kind, size)
        ]
        axis.plot(
            [places[s] + shift for s, _ in means],
            [v * BITS for _, v in means],
            "-",
            color=colour,
            label=kind,
        )
        for run in (run for run in runs if run["kind"] == kind):
            bound = run["bound"]
            axis.errorbar(
                places[run["size"]] + shift,
                bound["value"] * BITS,
                yerr=bound["standard_error"] * BITS,
                fmt="o",
                color=colour,
                markersize=4,
            )
    axis.set_xticks(range(len(sizes)), [f"{size}" for size in sizes])
    axis.set(xlabel="positions of a block", ylabel="bits per token, at most")
    axis.legend(frameon=False)
    figure.savefig(images / "blocks.png")


PAGE = Page("studies/blocks", "studies/blocks/page.py", tables, draw)
