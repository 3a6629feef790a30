"""Table, samples and figure of docs/studies/adapt.md, from the result file of ``studies.adapt.run``."""

from pathlib import Path
from typing import Any

from ddlib import plot
from studies.page import Page, ruler

RUNS = {
    "mdlm": "masks",
    "mdlm-1": "masks, seed 1",
    "lora": "masks, adapters of rank 8",
    "hdlm": "64 clusters",
    "plain": "masks, no shift, attention opened at once",
    "scratch": "DiT",
    "scratch-long": "DiT, 1,200 steps",
}
"""Runs by the name of their folder, and their names on the page."""
KEYS = ("step", "nats_per_token", "standard_error")
SHOWN = 220
"""Characters of a sample that the page shows."""
PINK = "#CC79A7"


def table(results: dict[str, Any]) -> list[str]:
    """Return a row for every run, a column for every measured step of the first run, and the
    end.
    """
    steps = [bound["step"] for bound in results["runs"]["mdlm"]["bounds"]]
    head = f"| run | parameters | {' | '.join(f'step {step}' for step in steps)} | end |"
    lines = [head, ruler(head)]
    for name, run in results["runs"].items():
        found = {bound["step"]: shown(bound) for bound in run["bounds"]}
        cells = [*(found.get(step, "-") for step in steps), found[max(found)]]
        lines.append(
            f"| `{name}`, {RUNS[name]} | {run['parameters'] / 1e6:.1f} million | "
            f"{' | '.join(cells)} |"
        )
    own, gaps = results["causal"], " | ".join(["-"] * len(steps))
    name, size = (
        "the causal model itself, each token given those before",
        f"{own['parameters'] / 1e6:.1f} million",
    )
    lines.append(f"| {name} | {size} | {shown(own)} | {gaps} |")
    return lines


def shown(measured: dict[str, Any]) -> str:
    """Format a mean and its error."""
    return f"{measured['nats_per_token']:.2f} ± {measured['standard_error']:.2f}"


def texts(results: dict[str, Any]) -> list[str]:
    """Return the first sample of the three runs of the protocol, before their first step and after
    their last.
    """
    lines = []
    for name in ("mdlm", "hdlm", "scratch"):
        run = results["runs"][name]
        for step in (min(run["samples"], key=int), max(run["samples"], key=int)):
            text = " ".join(run["samples"][step][0].split())[:SHOWN].replace("`", "'")
            lines.append(f"- `{name}`, step {step}: `` {text} ``")
    return lines


def tables(results: dict[str, Any]) -> str:
    """Return the whole part between the page's marks."""
    (count,) = {bound["sequences"] for run in results["runs"].values() for bound in run["bounds"]}
    machine = results["machine"]
    parts = [
        (
            f"Bound in nats per token of {count} held-out windows, ± one standard error:",
            table(results),
        ),
        ("Samples, the first of each run:", texts(results)),
        (
            "Measured on:",
            [
                f"{machine['device']}, {machine['processor']}, torch {machine['torch']}, Python "
                f"{machine['python']}."
            ],
        ),
    ]
    return "\n\n".join(f"{title}\n\n" + "\n".join(lines) for title, lines in parts)


def draw(results: dict[str, Any], images: Path) -> None:
    """Draw bounds by step with their errors, up to the end of the first run.

    Continued runs as a line at their end.
    """
    figure, (panel,) = plot.panels(size=(7.0, 4.2))
    colours = (plot.BLUE, plot.ORANGE, PINK, plot.VERMILION, plot.GREEN, plot.DARK, plot.GREY)
    last = results["runs"]["mdlm"]["steps"]
    for (name, about), colour in zip(RUNS.items(), colours, strict=True):
        if name not in results["runs"]:
            continue
        run = results["runs"][name]
        steps, bounds, errors = ([one[key] for one in run["bounds"]] for key in KEYS)
        if run["steps"] > last:
            panel.axhline(
                bounds[-1], color=colour, linestyle=":", label=f"{name}, {about}, its end"
            )
            continue
        panel.errorbar(
            steps,
            bounds,
            errors,
            fmt="o-",
            color=colour,
            label=f"{name}, {about}",
            capsize=2,
            linewidth=1,
            markersize=4,
        )
    own = results["causal"]["nats_per_token"]
    panel.axhline(
        own, color=plot.GREY, linestyle="--", linewidth=1, label="the causal model itself"
    )
    panel.set(xlabel="step", ylabel="nats per token")
    panel.set_title("bound of held-out text", loc="left", fontweight="bold")
    panel.legend(frameon=False, fontsize=8)
    figure.savefig(images / "adapt.png")


PAGE = Page("studies/adapt", "studies/adapt/page.py", tables, draw)
