"""The tables and the pictures of docs/frontier.md, from the result file of ``benchmarks.frontier``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.table import Page
from ddlib import plot

MODELS = ("masks", "two levels", "three levels")
COLOURS = dict(zip(MODELS, (plot.DARK, plot.VERMILION, plot.BLUE), strict=True))


class Cell(NamedTuple):
    """A model, and the sampler that draws its texts."""

    model: str
    sampler: str
    steps: int
    temperature: float = 1.0

    @property
    def name(self) -> str:
        """Name of its file."""
        return "-".join(map(str, self)).replace(" ", "_").replace(":", "_").replace("=", "_")


FRONTIER = [Cell(m, "ancestral", n, heat) for m in MODELS for n in (16, 64) for heat in (1.0, 0.85, 0.7)]
"""Quality against variety."""
FEW = (8, 16, 32, 64)
CALLS = [
    *(Cell(m, s, n) for m in MODELS for s in ("ancestral", "first_hitting", "confidence") for n in FEW),
    *(Cell(m, f"remask:eta={eta}", n) for m in MODELS for eta, n in ((0.05, 32), (0.05, 64), (0.05, 128))),
    *(Cell(m, f"entropy_bounded:gamma={gamma}", 192) for m in MODELS for gamma in (0.1, 1.0, 4.0, 16.0)),
]
"""Quality against network calls."""


class Point(NamedTuple):
    """A cell, the mean of its seeds."""

    nats: float
    error: float
    entropy: float
    calls: float


def mean(found: Sequence[dict[str, Any]]) -> Point:
    """Over seeds, whose errors are independent."""
    number = len(found)
    error = sum(one["nats"]["error"] ** 2 for one in found) ** 0.5
    entropy, calls = (sum(values) / number for values in zip(*map(_entropy_and_calls, found), strict=True))
    return Point(sum(one["nats"]["value"] for one in found) / number, error / number, entropy, calls)


def _entropy_and_calls(one: dict[str, Any]) -> tuple[float, float]:
    return one["entropy"]["value"], one.get("calls", 0.0)


def points(results: dict[str, Any]) -> dict[Cell, Point]:
    """Every cell that all seeds have."""
    found: dict[Cell, list[dict[str, Any]]] = {}
    for one in results["cells"]:
        found.setdefault(Cell(**one["cell"]), []).append(one)
    return {cell: mean(seeds) for cell, seeds in found.items() if len(seeds) == len(results["bounds"])}


def table(found: dict[Cell, Point], cells: Sequence[Cell], what: Callable[[Cell], str], title: str) -> list[str]:
    """A row for every way to draw, and for each model what came of it; then what levels change."""
    ways = list(dict.fromkeys(cell[1:] for cell in cells if cell in found))
    lines = [f"| {title} | {' | '.join(MODELS)} | two levels less masks |", "| --- |" + " --- |" * (len(MODELS) + 1)]
    for way in ways:
        row = [found[Cell(model, *way)] for model in MODELS]
        shown = [f"{p.nats:.3f} ± {p.error:.3f}, {p.entropy:.2f}, {p.calls:.1f}" for p in row]
        error = (row[0].error ** 2 + row[1].error ** 2) ** 0.5
        lines.append(
            f"| {what(Cell('', *way))} | {' | '.join(shown)} | {row[1].nats - row[0].nats:+.3f} ± {error:.3f} |"
        )
    return lines


def tables(results: dict[str, Any]) -> str:
    """All of them, as they stand between the page's marks."""
    found = points(results)
    real = mean(results["held-out"])
    bounds = ["| model | bound, nats per token, each seed |", "| --- | --- |"]
    for model in MODELS:
        values = ", ".join(
            f"{one[model]['value']:.3f} ± {one[model]['error']:.3f}" for one in results["bounds"].values()
        )
        bounds.append(f"| {model} | {values} |")
    frontier = table(found, FRONTIER, lambda c: f"{c.steps} steps, temperature {c.temperature:g}", "`ancestral`")
    calls = table(found, CALLS, lambda c: f"`{c.sampler}`, {c.steps} steps", "temperature 1")
    note = (
        "In each cell: the judge's nats per token, the entropy of a text's tokens in nats, and network calls a text. "
        f"Held-out speeches have {real.nats:.3f} ± {real.error:.3f} and {real.entropy:.2f}."
    )
    return "\n\n".join(["\n".join(bounds), note, "\n".join(frontier), "\n".join(calls)])


def draw_frontier(results: dict[str, Any], found: dict[Cell, Point], path: Path) -> None:
    """Quality against variety."""
    figure, axes = plot.panels(1, 2, size=(5.0, 3.8))
    for panel, steps in zip(axes, (16, 64), strict=True):
        for model in MODELS:
            cells = [cell for cell in FRONTIER if cell.model == model and cell.steps == steps]
            row = [found[cell] for cell in cells if cell in found]
            panel.errorbar(
                [p.entropy for p in row], [p.nats for p in row], [p.error for p in row], fmt="o-", color=COLOURS[model],
                markersize=4, label=model,
            )  # fmt: skip
        real = mean(results["held-out"])
        panel.plot(real.entropy, real.nats, "*", color=plot.GREEN, markersize=10, label="held-out speeches")
        panel.set(xlabel="entropy of a text's words, nats", ylabel="judge's nats per token")
        panel.set_title(f"{steps} steps, temperature 1, 0.85, 0.7", loc="left", fontweight="bold")
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def draw_calls(found: dict[Cell, Point], path: Path) -> None:
    """Quality against calls, a panel a sampler."""
    drawn = [cell for cell in CALLS if cell in found]
    names = list(dict.fromkeys(cell.sampler.split(":")[0] for cell in drawn))
    figure, axes = plot.panels(1, len(names), size=(2.8, 3.4))
    nats = [found[cell].nats for cell in drawn]
    ticks = (8, 16, 32, 64, 128)
    for panel, name in zip(axes, names, strict=True):
        for model in MODELS:
            cells = [cell for cell in drawn if cell.model == model and cell.sampler.split(":")[0] == name]
            row = sorted((found[cell] for cell in cells), key=lambda p: p.calls)
            panel.errorbar(
                [p.calls for p in row], [p.nats for p in row], [p.error for p in row], fmt="o-", color=COLOURS[model],
                markersize=4, label=model,
            )  # fmt: skip
        panel.set(xscale="log", xlabel="network calls a text", ylim=(min(nats) - 0.1, max(nats) + 0.1))
        panel.set_xticks(ticks, labels=list(map(str, ticks)))
        panel.minorticks_off()
        panel.set_title(name.replace("_", " "), loc="left", fontweight="bold")
    axes[0].set(ylabel="judge's nats per token")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path)


def draw(results: dict[str, Any], images: Path) -> None:
    """Draw both pictures."""
    found = points(results)
    draw_frontier(results, found, images / "frontier.png")
    draw_calls(found, images / "calls.png")


PAGE = Page("frontier", "frontier_page", tables, draw)
