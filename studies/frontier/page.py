"""Table and figures of the study, from its result file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddlib import plot
from recipes.evaluation.frontier import COLOURS, curve_name
from studies.page import Page

MODELS = {"masks": "masks", "overlap 1 (HDLM-64)": "HDLM-64"}
"""Models of docs/studies/scales.md, and their names here."""
NAMES = tuple(MODELS.values())
TEMPERATURES = (0.85, 0.7)
"""Temperatures besides 1, of ``ancestral``."""


class Point(NamedTuple):
    """A cell, the mean over the seeds."""

    nats: float
    error: float
    entropy: float
    calls: float
    seeds: int

    def __str__(self) -> str:
        one = ", one seed" if self.seeds == 1 else ""
        return f"{self.nats:.3f} ± {self.error:.3f}, {self.entropy:.2f}, {self.calls:.1f}{one}"


def mean(cells: Sequence[Mapping[str, Any]]) -> Point:
    """Return the mean of cells whose samples are independent."""
    count = len(cells)
    nats, entropy = (
        sum(cell[name]["value"] for cell in cells) / count for name in ("nats", "entropy")
    )
    error = sum(cell["nats"]["error"] ** 2 for cell in cells) ** 0.5 / count
    return Point(nats, error, entropy, sum(cell.get("calls", 0.0) for cell in cells) / count, count)


def points(result: Mapping[str, Any]) -> dict[tuple[str, str, int], Point]:
    """Return the cells by model, curve and number of calls that are allowed."""
    found = dict[tuple[str, str, int], list[Mapping[str, Any]]]()
    for run in result["runs"]:
        for cell in run["cells"]:
            found.setdefault((run["model"], curve_name(cell), cell["budget"]), []).append(cell)
    return {key: mean(cells) for key, cells in found.items()}


def held_out(result: Mapping[str, Any]) -> Point:
    """Return quality and variety of held-out text, which all runs share."""
    return mean([result["runs"][0]["held_out"]])


def tables(result: Mapping[str, Any]) -> str:
    """Return the table of the page: a row for every curve and number of calls."""
    found, real = points(result), held_out(result)
    lines = [
        "In each cell: the judge's nats per token, the entropy of a sample's tokens in nats, and "
        "the network calls of "
        f"a sample. Held-out text has {real.nats:.3f} ± {real.error:.3f} and {real.entropy:.2f}.",
        "",
        f"| sampler, calls allowed | {' | '.join(NAMES)} | {NAMES[1]} minus {NAMES[0]} |",
        "| --- |" + " --- |" * (len(NAMES) + 1),
    ]
    for curve, budget in sorted({key[1:] for key in found}):
        row = [found.get((model, curve, budget)) for model in NAMES]
        shown = ["-" if p is None else str(p) for p in row]
        masks, tree = row
        less = "-"
        if masks is not None and tree is not None:
            less = f"{tree.nats - masks.nats:+.3f} ± {(masks.error**2 + tree.error**2) ** 0.5:.3f}"
        lines.append(f"| {curve}, {budget} | {' | '.join(shown)} | {less} |")
    return "\n".join(lines)


def draw_entropy(result: Mapping[str, Any], path: Path) -> None:
    """Draw quality against variety: temperatures of ``ancestral``, a curve for each model and
    number of calls.
    """
    found, real = points(result), held_out(result)
    figure, (axes,) = plot.panels(size=(6.0, 4.2))
    warm = ["ancestral", *(f"ancestral, temperature {one:g}" for one in TEMPERATURES)]
    budgets = sorted({budget for _, curve, budget in found if curve == warm[-1]})
    for colour, model in zip(COLOURS, NAMES, strict=False):
        for style, budget in zip(("o-", "s--"), budgets, strict=False):
            row = [found[model, curve, budget] for curve in warm]
            axes.plot(
                [p.entropy for p in row],
                [p.nats for p in row],
                style,
                color=colour,
                markersize=4,
                label=f"{model}, {budget} calls",
            )
    axes.plot(real.entropy, real.nats, "*", color=plot.DARK, markersize=10, label="held-out text")
    axes.set(xlabel="entropy of a sample's tokens, nats", ylabel="judge's nats per token")
    axes.set_title(
        f"ancestral, temperature 1, {', '.join(map(str, TEMPERATURES))}",
        loc="left",
        fontweight="bold",
    )
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def draw_calls(result: Mapping[str, Any], path: Path) -> None:
    """Draw quality against network calls at temperature 1, a panel for each model."""
    found = points(result)
    curves = [
        curve for curve in dict.fromkeys(key[1] for key in found) if "temperature" not in curve
    ]
    figure, panels = plot.panels(1, len(NAMES), size=(4.2, 3.8))
    ends = [
        p.nats + sign * p.error
        for (_, curve, _), p in found.items()
        if curve in curves
        for sign in (-1, 1)
    ]
    for panel, model in zip(panels, NAMES, strict=True):
        for colour, curve in zip(COLOURS, curves, strict=False):
            row = sorted(
                (p for (one, name, _), p in found.items() if (one, name) == (model, curve)),
                key=lambda p: p.calls,
            )
            if row:
                panel.errorbar(
                    [p.calls for p in row],
                    [p.nats for p in row],
                    [p.error for p in row],
                    fmt="o-",
                    color=colour,
                    markersize=4,
                    label=curve,
                )
        # the space above is for the legend
        panel.set(
            xscale="log",
            xlabel="network calls of a sample",
            ylim=(min(ends) - 0.05, max(ends) + 0.45),
        )
        panel.set_xticks(
            ticks := sorted({budget for *_, budget in found}), labels=list(map(str, ticks))
        )
        panel.minorticks_off()
        panel.set_title(model, loc="left", fontweight="bold")
    panels[0].set(ylabel="judge's nats per token")
    panels[-1].legend(frameon=False, fontsize=8)
    figure.savefig(path)


def draw(result: Mapping[str, Any], images: Path) -> None:
    """Draw both pictures."""
    draw_entropy(result, images / "frontier.png")
    draw_calls(result, images / "calls.png")


PAGE = Page("studies/frontier", "studies/frontier/page.py", tables, draw)
