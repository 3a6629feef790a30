"""Tables of the study of rewards, each row with what is measured or "not yet run"."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from studies.rewards.ratios import KNOWN
from studies.rewards.training import METHODS, PROCESSES, Sizes
from studies.tables import MISSING, interval, table

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "rewards.md"
BEGIN = "<!-- tables: python -m studies.rewards.run -->"
TIMES = ("before", "after")

Result = Mapping[str, Any]


def of_seeds(result: Result, process: str, method: str) -> list[Result]:
    """Return the runs of a process and a method, by seed."""
    runs = result.get("runs", {})
    names = [f"{process} | {method} | {seed}" for seed in Sizes().seeds]
    return [runs[name] for name in names if name in runs]


def known_table(result: Result) -> str:
    """Return the table of ratios where the truth is known."""
    rows = []
    for name in KNOWN:
        one = result.get("known", {}).get(name)
        if one is None:
            rows.append([name] + [MISSING] * 6)
            continue
        away = [abs(value) for value in one["path_errors"]]
        bias = [bound - truth for bound, truth in zip(one["bound"], one["truth"], strict=True)]
        rows.append(
            [
                name,
                str(one["sequences"]),
                f"{mean(abs(value) for value in one['truth']):.3f}",
                f"{max(away):.1f}",
                f"{mean(abs(value) for value in bias):.3f}, {max(bias, key=abs):+.3f}",
                f"{mean(one['path_deviation']):.3f}",
                f"{mean(one['bound_deviation']):.3f}",
            ]
        )
    heading = [
        "process",
        "sequences",
        "mean of the true ratio, absolute",
        "path: largest difference, in errors",
        "bound: mean and largest bias",
        "path: deviation",
        "bound: deviation of a draw",
    ]
    return table(heading, rows)


def solved_table(result: Result) -> str:
    """Return the table of solved puzzles."""
    rows = []
    for process in PROCESSES:
        for method in METHODS:
            runs = of_seeds(result, process, method)
            rate = f"{runs[0]['rate']:g}" if runs else MISSING
            cells = [
                interval([run[time][count] for run in runs])
                for count in ("one", "any")
                for time in TIMES
            ]
            seconds = f"{mean(run['seconds'] for run in runs):.0f}" if runs else MISSING
            rows.append([process, method, rate, *cells, seconds])
    heading = [
        "process",
        "ratio",
        "rate",
        "1 sample, before",
        "after",
        "8 samples, before",
        "after",
        "seconds",
    ]
    return table(heading, rows)


def difference_table(result: Result) -> str:
    """Return the table of differences to the exact ratio, between runs of one seed."""
    rows = []
    for process in PROCESSES:
        exact = of_seeds(result, process, "path")
        for method in [name for name in METHODS if name != "path"]:
            runs = of_seeds(result, process, method)
            pairs = [*zip(exact, runs, strict=False)]
            cells = [
                interval(
                    [one["after"][count] - run["after"][count] for one, run in pairs], sign="+"
                )
                for count in ("one", "any")
            ]
            rows.append([process, method, *cells])
    return table(["process", "path minus", "1 sample", "8 samples"], rows)


def search_table(result: Result) -> str:
    """Return the table of the search of rates."""
    rows = []
    for process in PROCESSES:
        for method in METHODS:
            names = [f"{process} | {method} | {rate:g}" for rate in Sizes().rates]
            runs = [result.get("search", {}).get(name) for name in names]
            cells = [MISSING if run is None else f"{run['after']['one']:.3f}" for run in runs]
            rows.append([process, method, *cells])
    return table(["process", "ratio", *(f"{rate:g}" for rate in Sizes().rates)], rows)


def trained_table(result: Result) -> str:
    """Return the table of ratios of a trained network."""
    rows = []
    for process in PROCESSES:
        one = result.get("trained", {}).get(process)
        names = ("path", "bound")
        if one is None:
            rows.append([process] + [MISSING] * 5)
            continue
        means = [f"{one[f'{name}_mean']:+.3f}, {one[f'{name}_deviation']:.3f}" for name in names]
        noise = [f"{one[f'noise_{draws}']:.3f}" for draws in (1, 4)]
        rows.append([process, *means, *noise, f"{one['correlation']:.2f}"])
    heading = [
        "process",
        "path: mean, deviation over answers",
        "bound: the same of its mean over noise",
        "noise of 1 draw",
        "of 4 draws",
        "correlation",
    ]
    return table(heading, rows)


def tables(result: Result) -> str:
    """Return all tables."""
    parts = {
        "**A.** Ratios where the truth is known, in nats of a sequence.": known_table,
        "**B.** Solved puzzles; ± is the 95 % interval over seeds.": solved_table,
        "Differences between runs of one seed, likewise.": difference_table,
        "Search of the rate: puzzles solved by one sample, one seed.": search_table,
        "Log-ratios of a trained network before and after ten batches of samples.": trained_table,
    }
    return "\n\n".join(f"{title}\n\n{make(result)}" for title, make in parts.items())
