"""Tables of the first sixteen runs in docs/studies/budgets.md, from their result file."""

import math
from collections import defaultdict
from statistics import mean
from typing import Any

from studies.page import Page, measure

PAPER = {
    "MDLM": 27.39,
    "GIDD(0.1)": 25.82,
    "HDLM-1": 25.72,
    "HDLM-8": 24.57,
    "HDLM-64": 23.36,
    "HDLM-64, xi = 0.9": 23.54,
}
"""Validation perplexities of the HDLM paper on OpenWebText, SMALL, 131 billion tokens; its GIDD is
GIDD+.
"""
BASE = "MDLM"
Runs = dict[str, list[dict[str, Any]]]


def by_process(result: dict[str, Any]) -> Runs:
    """Group the runs by process, seed by seed."""
    found: Runs = defaultdict(list)
    for run in result["runs"]:
        found[run["process"]].append(run)
    return found


def papers_gain(name: str) -> float | None:
    """Return nats per token above MDLM in the paper; None where it has no such model."""
    return math.log(PAPER[name] / PAPER[BASE]) if name in PAPER else None


def whole(runs: Runs) -> list[str]:
    """Return the table of all sources together, with the paper's results beside them."""
    lines = [
        "| process | bound, nats/token, each seed | above MDLM, each seed | paper: perplexity | "
        "paper: above MDLM |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, seeds in runs.items():
        own = ", ".join(measure(run["all_sources"]) for run in seeds)
        gain = (
            "-" if name == BASE else ", ".join(measure(run["less_mdlm"], sign="+") for run in seeds)
        )
        theirs = papers_gain(name)
        paper = (
            ("-", "-")
            if theirs is None
            else (f"{PAPER[name]:.2f}", "-" if name == BASE else f"{theirs:+.3f}")
        )
        lines.append(f"| {name} | {own} | {gain} | {paper[0]} | {paper[1]} |")
    return lines


def sources(runs: Runs) -> list[str]:
    """Return the table by source, the mean of the seeds."""
    names = list(next(iter(runs.values()))[0]["by_source"])
    lines = [
        "| process | " + " | ".join(n.replace("_", " ") for n in names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for name, seeds in runs.items():
        cells = [
            mean(run["by_source"][source]["nats_per_token"]["value"] for run in seeds)
            for source in names
        ]
        lines.append(f"| {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
    errors = [
        max(
            run["by_source"][n]["nats_per_token"]["error"]
            for seeds in runs.values()
            for run in seeds
        )
        for n in names
    ]
    return [
        *lines,
        "| *largest standard error* | " + " | ".join(f"{error:.3f}" for error in errors) + " |",
    ]


def tables(result: dict[str, Any]) -> str:
    """Return both tables, as they stand between the page's marks."""
    runs = by_process(result)
    return "\n".join([*whole(runs), "", *sources(runs)])


PAGE = Page("studies/budgets", "studies/first_runs/page.py", tables)
