"""Tables of docs/studies/structure.md."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from studies.page import Page, less

JUMPS = "jumps-"
"""Begins the names of samples with equally many expected jumps in each step."""
RANDOM = "random "
"""What the name of a random tree adds to that of its tree."""
BIT = math.log(2)
SHOWN = {
    "patches": ("classifier_frechet", "diversity"),
    "digits": ("classifier_frechet", "diversity"),
    "molecules": ("validity", "uniqueness"),
    "chorales": ("interval_distance", "pitch_class_distance"),
}
"""Measures of samples on the page; the result file has all of them."""


def tables(found: Mapping[str, Any]) -> str:
    """Return the tables of the page: bounds of each data set, then measures of samples."""
    lines = list[str]()
    for name, measures in SHOWN.items():
        mine = [run for run in found["runs"] if run["data"] == name]
        if mine:
            lines += [f"### {name.capitalize()}", "", *_bounds(mine), "", *_random(mine)]
            for begin, steps in (
                ("", ""),
                (JUMPS, " with equally many expected jumps in each step"),
            ):
                lines += [
                    line for measure in measures for line in _samples(mine, measure, begin, steps)
                ]
            lines += _guided(mine)
    return "\n".join(lines).rstrip()


def _names(runs: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    return list(dict.fromkeys(run[key] for run in runs))


def _bounds(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the bounds and of the costs of a step."""
    seeds, by = _names(runs, "seed"), {(run["process"], run["seed"]): run for run in runs}
    head = "".join(f" seed {seed} | above masks |" for seed in seeds)
    columns = 2 + 2 * len(seeds)
    lines = [
        "Bound in bits per dimension, and the difference to masks; cost of a training step over "
        "that of masks:",
        "",
        f"| process |{head} cost |",
        "|" + " --- |" * columns,
    ]
    for title in _names(runs, "process"):
        cells = []
        for seed in seeds:
            run = by.get((title, seed))
            cells += (
                ["-", "-"]
                if run is None
                else [_value(run["bound"], False), _value(run["above_masks"], True)]
            )
        cost = next((run.get("cost_over_masks") for run in runs if run["process"] == title), None)
        cells.append("-" if cost is None else f"{cost:.2f}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def _random(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the differences between trees and their random trees, on the same
    sequences.
    """
    seeds, by = _names(runs, "seed"), {(run["process"], run["seed"]): run for run in runs}
    pairs = {title: f"{RANDOM}{title}" for title in _names(runs, "process")}
    rows = list[str]()
    for title, other in pairs.items():
        both = [
            (by[title, seed], by[other, seed])
            if {(title, seed), (other, seed)} <= by.keys()
            else ()
            for seed in seeds
        ]
        if any(both):
            cells = [_value(less(*pair), True) if pair else "-" for pair in both]
            rows.append(f"| {title} minus {other} | " + " | ".join(cells) + " |")
    if not rows:
        return []
    head = " | ".join(f"seed {seed}" for seed in seeds)
    lines = ["Bound of a tree minus that of its random tree:", "", f"| difference | {head} |"]
    return [*lines, "|" + " --- |" * (1 + len(seeds)), *rows, ""]


def _value(measure: Mapping[str, float], signed: bool) -> str:
    value, error = measure["value"] / BIT, measure["standard_error"] / BIT
    return f"{value:+.3f} ± {error:.3f}" if signed else f"{value:.3f}"


def _samples(runs: Sequence[Mapping[str, Any]], measure: str, begin: str, steps: str) -> list[str]:
    """Return the table of a measure by number of calls: the mean over the seeds, and half their
    difference.

    Args:
        runs: runs of one data set.
        measure: name of the measure.
        begin: beginning of the names of the samples, before the number of calls.
        steps: description of their steps.
    """
    keys = {
        key.removeprefix(begin)
        for run in runs
        for key in run.get("samples", {})
        if key.startswith(begin)
    }
    numbers = sorted(int(key) for key in keys if key.isdigit())
    if not numbers:
        return []
    lines = [
        f"Samples{steps}, {measure.replace('_', ' ')}, mean of the seeds ± half of their "
        "difference:",
        "",
        "| process | " + " | ".join(f"{calls} calls" for calls in numbers) + " |",
        "|" + " --- |" * (1 + len(numbers)),
    ]
    for title in _names(runs, "process"):
        mine = [run.get("samples", {}) for run in runs if run["process"] == title]
        names = [f"{begin}{calls}" for calls in numbers]
        if any(name in one for one in mine for name in names):
            cells = [_mean([one[name][measure] for one in mine if name in one]) for name in names]
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    floors = {
        sample[f"{measure}_of_data"]
        for run in runs
        for sample in run.get("samples", {}).values()
        if f"{measure}_of_data" in sample
    }
    for floor in sorted(floors):
        lines.append("| *held-out data* | " + " | ".join([f"{floor:.3f}"] * len(numbers)) + " |")
    return [*lines, ""]


def _guided(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of guided samples."""
    keys = sorted({key for run in runs for key in run.get("samples", {}) if "guided" in key})
    if not keys:
        return []
    strengths = [key.removeprefix("guided-") for key in keys]
    heads = " | ".join(f"strength {strength}: right class | diversity" for strength in strengths)
    lines = [
        "Guided samples at 32 calls:",
        "",
        f"| process | {heads} |",
        "|" + " --- |" * (1 + 2 * len(keys)),
    ]
    for title in _names(runs, "process"):
        mine = [run.get("samples", {}) for run in runs if run["process"] == title]
        cells = []
        for key in keys:
            for measure in ("class_accuracy", "diversity"):
                cells.append(_mean([one[key][measure] for one in mine if key in one]))
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _mean(values: Sequence[float]) -> str:
    values = [value for value in values if not math.isnan(value)]  # a share among no samples
    if not values:
        return "-"
    middle, spread = sum(values) / len(values), (max(values) - min(values)) / 2
    return f"{middle:.3f}" + (f" ± {spread:.3f}" if len(values) > 1 else "")


PAGE = Page("studies/structure", "studies/structure/page.py", tables)
