"""Tables and figure of docs/studies/budgets.md, from the result file of ``studies.budgets.run``."""

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from ddlib import plot
from studies.page import Page, measure, ruler

BASE = "MDLM"
Run = dict[str, Any]
COLOURS = (plot.DARK, plot.VERMILION, "#56B4E9", plot.BLUE, plot.GREEN, plot.ORANGE)


def rows(runs: list[Run], cell: Callable[[Run], str]) -> list[str]:
    """Return the table of process by budget, seeds side by side; a hyphen for a missing run."""
    budgets = sorted({run["millions"] for run in runs})
    lines = ["| process | " + " | ".join(f"{budget:g} million tokens" for budget in budgets) + " |"]
    lines.append(ruler(lines[0]))
    for name in dict.fromkeys(run["process"] for run in runs):
        cells = [
            ", ".join(
                cell(run) for run in runs if run["process"] == name and run["millions"] == budget
            )
            or "-"
            for budget in budgets
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def sources(runs: list[Run]) -> list[str]:
    """Return the table by source at the largest budget, the mean of the seeds."""
    largest = max(run["millions"] for run in runs)
    runs = [run for run in runs if run["millions"] == largest]
    names = list(runs[0]["by_source"])
    lines = [
        f"| {largest:g} million tokens | "
        + " | ".join(name.replace("_", " ") for name in names)
        + " |"
    ]
    lines.append(ruler(lines[0]))

    def each(key: str, name: str, own: list[Run]) -> list[float]:
        return [run["by_source"][name]["nats_per_token"][key] for run in own]

    for process in dict.fromkeys(run["process"] for run in runs):
        own = [run for run in runs if run["process"] == process]
        lines.append(
            f"| {process} | "
            + " | ".join(f"{mean(each('value', name, own)):.3f}" for name in names)
            + " |"
        )
    errors = [f"{max(each('error', name, runs)):.3f}" for name in names]
    return [*lines, f"| *largest standard error* | {' | '.join(errors)} |"]


def search(found: dict[str, Any]) -> list[str]:
    """Return the table of bounds on the text of the search; chosen values in bold."""
    lines = []
    for name, bounds in found["bounds"].items():
        cells = [
            f"{rule} {_bold(measure(bound), rule == found['best'][name])}"
            for rule, bound in bounds.items()
        ]
        lines.append(
            f"- {'speeds of HDLM-64, all edges' if name == 'speed' else name}: {'; '.join(cells)}"
        )
    return lines


def tables(results: dict[str, Any]) -> str:
    """Return all tables, as they stand between the page's marks."""
    runs = results["runs"]
    bounds = rows(runs, lambda run: measure(run["all_sources"]))
    gaps = rows(
        [run for run in runs if run["process"] != BASE], lambda run: measure(run["less_mdlm"], "+")
    )
    return "\n".join(
        [
            "Bound in nats per token, each seed:",
            "",
            *bounds,
            "",
            f"Above {BASE}:",
            "",
            *gaps,
            "",
            *sources(runs),
            "",
            "The search, at 2 million tokens:",
            "",
            *search(results["search"]),
        ]
    )


def draw(results: dict[str, Any], images: Path) -> None:
    """Draw the difference of each process to masks by budget, and the training curves at the
    largest.
    """
    runs = results["runs"]
    figure, (left, right) = plot.panels(1, 2, size=(5.6, 4.2))
    names, largest = (
        list(dict.fromkeys(run["process"] for run in runs)),
        max(run["millions"] for run in runs),
    )
    for name, colour in zip(names, COLOURS, strict=False):
        own = [run for run in runs if run["process"] == name]
        for seed in sorted({run["seed"] for run in own}) if name != BASE else ():
            made = [run for run in own if run["seed"] == seed]
            gaps = [run["less_mdlm"] for run in made]
            left.errorbar(
                [run["millions"] for run in made],
                [gap["value"] for gap in gaps],
                yerr=[gap["standard_error"] for gap in gaps],
                fmt="o-",
                color=colour,
                label=None if seed else name,
            )
        for run in own:
            if run["millions"] == largest:
                step, value, _ = zip(*run["curve"], strict=True)
                right.plot(step, value, "-", color=colour, label=None if run["seed"] else name)
    left.axhline(0, color=plot.GREY, linewidth=1)
    left.set(
        xscale="log",
        xlabel="millions of tokens",
        ylabel=f"nats per token above {BASE} (lower is better)",
    )
    budgets = sorted({run["millions"] for run in runs})
    left.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    left.set_xticks([], minor=True)
    left.set_title("against masked diffusion", loc="left", fontweight="bold")
    right.set(xlabel="step", ylabel="nats per token")
    right.set_title(f"validation bound, {largest:g} million tokens", loc="left", fontweight="bold")
    for axis in (left, right):
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(images / "results.png")


def _bold(text: str, chosen: bool) -> str:
    return f"**{text}**" if chosen else text


PAGE = Page("studies/budgets", "studies/budgets/page.py", tables, draw)
