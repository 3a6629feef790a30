"""Tables and figure of docs/blocks.md, from the output of ``blocks.py evaluate``.

    python -m benchmarks.blocks_page benchmarks/results/blocks.json

Rewrites the part of the page between its two marks, and docs/images/blocks.png.
"""

import math
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.blocks import KINDS, SIZES
from benchmarks.table import DOCS, fill, result
from ddlib import plot

BEGIN, END = "<!-- tables: benchmarks/blocks_page.py -->", "<!-- end of tables -->"
BITS = 1 / math.log(2)
"""Bits per nat."""
Run = dict[str, Any]


def of(runs: list[Run], kind: str, size: int) -> list[Run]:
    """Select the seeds of one cell."""
    return [run for run in runs if run["kind"] == kind and run["size"] == size]


def cell(seeds: list[Run], name: str, sign: str = "") -> str:
    """Format bits per token of each seed, with standard errors."""
    values = [run[name] for run in seeds if name in run]
    return ", ".join(f"{v['value'] * BITS:{sign}.3f} ± {v['standard_error'] * BITS:.3f}" for v in values) or "-"


def tables(runs: list[Run]) -> str:
    """Return a row for every kind and size."""
    heads = ("process", "block", "bits per word, each seed", "less the whole text", "less MDLM in such blocks")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for kind in KINDS:
        for size in SIZES:
            seeds = of(runs, kind, size)
            if not seeds:
                continue
            whole = "-" if size == SIZES[0] else cell(seeds, "less_whole_text", "+")
            masks = "-" if kind == KINDS[0] else cell(seeds, "less_mdlm", "+")
            lines.append(f"| {kind} | {size} | {cell(seeds, 'bound')} | {whole} | {masks} |")
    return "\n".join(lines)


def draw(runs: list[Run], path: Path) -> None:
    """Draw bits per token by the size of a block."""
    figure, (axis,) = plot.panels(size=(6.0, 4.0))
    places = {size: place for place, size in enumerate(SIZES)}
    for kind, colour, shift in zip(KINDS, (plot.DARK, plot.BLUE), (-0.05, 0.05), strict=True):
        means = [(size, mean(run["bound"]["value"] for run in of(runs, kind, size))) for size in SIZES
                 if of(runs, kind, size)]  # fmt: skip
        axis.plot([places[s] + shift for s, _ in means], [v * BITS for _, v in means], "-", color=colour, label=kind)
        for run in (run for run in runs if run["kind"] == kind):
            bound = run["bound"]
            axis.errorbar(
                places[run["size"]] + shift, bound["value"] * BITS, yerr=bound["standard_error"] * BITS, fmt="o",
                color=colour, markersize=4,
            )  # fmt: skip
    axis.set_xticks(range(len(SIZES)), [f"{size}" for size in SIZES])
    axis.set(xlabel="positions of a block", ylabel="bits per word, at most")
    axis.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    """Run the command."""
    runs = result(__doc__)["runs"]
    fill(DOCS / "blocks.md", tables(runs), BEGIN, END)
    draw(runs, DOCS / "images" / "blocks.png")


if __name__ == "__main__":
    main()
