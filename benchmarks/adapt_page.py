"""The table, the samples and the picture of docs/adapt.md, from what ``benchmarks.adapt`` wrote.

    python -m benchmarks.adapt_page benchmarks/results/adapt.json

Rewrites what stands between the two marks of the page, and docs/images/adapt.png.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.adapt import RUNS
from benchmarks.results_page import DOCS
from benchmarks.table import page, ruler
from ddlib import plot

BEGIN, END = "<!-- tables: benchmarks/adapt_page.py -->", "<!-- end of tables -->"
SHOWN = 220
"""Characters of a sample that the page shows."""


def table(told: dict[str, Any]) -> list[str]:
    """A row for every run, a column for every step at which the first of them was measured, and the end."""
    steps = [bound["step"] for bound in told["runs"]["mdlm"]["bounds"]]
    head = f"| run | parameters | {' | '.join(f'step {step}' for step in steps)} | end |"
    lines = [head, ruler(head)]
    for name, run in told["runs"].items():
        found = {bound["step"]: shown(bound) for bound in run["bounds"]}
        cells = [*(found.get(step, "-") for step in steps), found[max(found)]]
        lines.append(f"| `{name}`, {RUNS[name]} | {run['parameters'] / 1e6:.1f} million | {' | '.join(cells)} |")
    own, gaps = told["causal"], " | ".join(["-"] * len(steps))
    name, size = "the causal model itself, each token after those in front", f"{own['parameters'] / 1e6:.1f} million"
    lines.append(f"| {name} | {size} | {shown(own)} | {gaps} |")
    return lines


def shown(measured: dict[str, Any]) -> str:
    """A mean and its error."""
    return f"{measured['nats_per_token']:.2f} ± {measured['standard_error']:.2f}"


def texts(told: dict[str, Any]) -> list[str]:
    """The first sample of every run before its first step and after its last."""
    lines = []
    for name, run in told["runs"].items():
        for step in (min(run["samples"], key=int), max(run["samples"], key=int)):
            text = " ".join(run["samples"][step][0].split())[:SHOWN].replace("`", "'")
            lines.append(f"- `{name}`, step {step}: `` {text} ``")
    return lines


def tables(told: dict[str, Any]) -> str:
    """All of it, as it stands between the page's marks."""
    (count,) = {bound["sequences"] for run in told["runs"].values() for bound in run["bounds"]}
    machine = told["machine"]
    parts = [
        (f"Bound in nats per token of {count} held-out windows, ± one standard error:", table(told)),
        ("Samples, the first of each run:", texts(told)),
        (
            "Measured on:",
            [f"{machine['device']}, {machine['processor']}, torch {machine['torch']}, Python {machine['python']}."],
        ),
    ]
    return "\n\n".join(f"{title}\n\n" + "\n".join(lines) for title, lines in parts)


def draw(told: dict[str, Any], path: Path) -> None:
    """Bounds by step, with their errors, and the training losses they come from."""
    figure, panels = plot.panels(1, 2, size=(5.0, 3.6))
    colours = dict(zip(RUNS, (plot.BLUE, plot.ORANGE, plot.VERMILION, plot.GREEN, plot.DARK, plot.GREY), strict=True))
    for name, run in told["runs"].items():
        bounds, colour = run["bounds"], colours[name]
        panels[0].errorbar(
            [bound["step"] for bound in bounds],
            [bound["nats_per_token"] for bound in bounds],
            [bound["standard_error"] for bound in bounds],
            fmt="o-", color=colour, label=f"{name}, {RUNS[name]}", capsize=2, linewidth=1,
        )  # fmt: skip
        losses = run["losses"]
        panels[1].plot([one["step"] for one in losses], [one["loss"] for one in losses], color=colour, linewidth=1)
    own = told["causal"]["nats_per_token"]
    panels[0].axhline(own, color=plot.GREY, linestyle="--", linewidth=1, label="the causal model itself")
    panels[0].set(xlabel="step", ylabel="nats per token")
    panels[0].set_title("bound of held-out text", loc="left", fontweight="bold")
    panels[0].legend(frameon=False, fontsize=8)
    panels[1].set(xlabel="step", ylabel="nats per token")
    panels[1].set_title("training loss, weights clipped at 2", loc="left", fontweight="bold")
    figure.savefig(path)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    told = json.loads(parser.parse_args().result.read_text(encoding="utf-8"))
    path = DOCS / "adapt.md"
    path.write_text(page(path.read_text(encoding="utf-8"), tables(told), BEGIN, END), encoding="utf-8")
    draw(told, DOCS / "images" / "adapt.png")


if __name__ == "__main__":
    main()
