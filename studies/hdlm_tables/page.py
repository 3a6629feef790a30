"""Tables of docs/studies/hdlm_tables.md, from the result file.

The result file is written by

    python -m studies.hdlm_tables.page TABLES...

from the ``tables.json`` of one or several calls of ``recipes.hdlm_tables``.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from scipy.stats import spearmanr

from recipes.hdlm_tables import FORCED, ROWS
from studies.page import Page, measure
from studies.tables import MISSING, table

RESULTS = Path(__file__).parent / "results.json"
BASE = "hdlm-64"
SEEDS = (0, 1)
LOCAL = ("data", "scorer", "seed", "out")
"""Settings that are paths or differ between calls."""
Row = Mapping[str, Any]


class Published(NamedTuple):
    """Perplexities of a row in the paper, 131 billion tokens of OpenWebText."""

    bound: float
    judge: float
    """By GPT-2 large, of samples with forced transitions."""


PAPER = {
    "hdlm-64": Published(23.36, 144.2),
    "clusters=1": Published(25.72, 163.9),
    "clusters=2": Published(25.79, 160.2),
    "clusters=4": Published(25.05, 162.0),
    "clusters=8": Published(24.57, 146.6),
    "clusters=16": Published(24.17, 155.2),
    "clusters=32": Published(23.83, 154.6),
    "clusters=128": Published(23.25, 148.0),
    "clusters=256": Published(23.65, 150.4),
    "gamma=2": Published(25.01, 138.3),
    "gamma=3": Published(130.32, 135.9),
    "xi=0.9": Published(23.54, 69.76),
    "xi=0.8": Published(25.93, 54.15),
    "hard": Published(25.38, 151.9),
    "auxiliary": Published(24.36, 151.9),
    "hard+auxiliary": Published(25.21, 143.2),
}


def collected(files: Iterable[Path]) -> dict[str, Any]:
    """Return the content of the result file: the rows of all files, seed by seed.

    Raises:
        ValueError: two files have other settings or the same row.
    """
    settings: dict[str, Any] = {}
    rows: dict[tuple[int, str], Row] = {}
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        own = {name: value for name, value in found["settings"].items() if name not in LOCAL}
        if settings and own != settings:
            raise ValueError(f"{file}: has the settings {own}, must have {settings}")
        settings = own
        for row in found["rows"]:
            key = (row["seed"], row["row"])
            if key in rows:
                raise ValueError(f"{file}: has the row {key}, another file too")
            command = [*row["provenance"]["command"][:3], "..."]  # without local paths
            rows[key] = {**row, "provenance": {**row["provenance"], "command": command}}
    order = [(seed, name) for seed in SEEDS for name in ROWS if (seed, name) in rows]
    return {"settings": settings, "rows": [rows[key] for key in order]}


def by_seed(result: Mapping[str, Any]) -> dict[int, dict[str, Row]]:
    """Return the rows of each seed by name."""
    found: dict[int, dict[str, Row]] = {seed: {} for seed in SEEDS}
    for row in result["rows"]:
        found[row["seed"]][row["row"]] = row
    return found


def bound(row: Row) -> float:
    """Return the bound of a row in nats per token."""
    return row["bound"]["value"]


def cells(row: Row) -> dict[str, Mapping[str, Any]]:
    """Return the cells of a row by "no" or "yes" for forced transitions."""
    return {
        "yes" if row["xi"] == 1 or cell["sampler"] == FORCED else "no": cell
        for cell in row["cells"]
    }


def each_seed(result: Mapping[str, Any], name: str, text: Callable[[Row, Row], str]) -> str:
    """Join the texts of a row for each seed.

    ``text`` takes the row and the row of ``BASE``.
    """
    every = by_seed(result).values()
    if not any(name in rows for rows in every):
        return MISSING
    return ", ".join(
        text(rows[name], rows[BASE]) if {name, BASE} <= rows.keys() else MISSING for rows in every
    )


def bounds_row(result: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return the line of a row in the table of bounds."""
    shown = each_seed(result, name, lambda row, base: measure(row["bound"]))
    if name == BASE:
        return (name, shown, "-", "-")
    above = each_seed(result, name, lambda row, base: f"{bound(row) - bound(base):+.3f}")
    return (name, shown, above, f"{math.log(PAPER[name].bound / PAPER[BASE].bound):+.3f}")


def samples_row(result: Mapping[str, Any], name: str, forced: str) -> Sequence[str]:
    """Return the line of a row and a way of sampling."""
    paper = f"{math.log(PAPER[name].judge / PAPER[BASE].judge):+.3f}"
    return (
        name,
        forced,
        each_seed(result, name, lambda row, base: measure(cells(row)[forced]["nats"])),
        each_seed(result, name, lambda row, base: measure(cells(row)[forced]["entropy"])),
        each_seed(result, name, lambda row, base: f"{cells(row)[forced]['distinct']['2']:.3f}"),
        paper if forced == "yes" and name != BASE else "-",
    )


def correlations(result: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield the lines of the rank correlations over the rows of a seed."""

    def of_clusters(rows: dict[str, Row]) -> float:
        some = [rows[name] for name in ROWS if name == BASE or name.startswith("clusters")]
        return _rank([(row["clusters"], bound(row)) for row in some])

    def of_samples(rows: dict[str, Row]) -> float:
        every = [cell for name in ROWS for cell in cells(rows[name]).values()]
        return _rank([(cell["entropy"]["value"], cell["nats"]["value"]) for cell in every])

    def of_bounds(rows: dict[str, Row]) -> float:
        plain = [rows[name] for name, row in ROWS.items() if row.xi == 1]
        return _rank([(bound(row), row["cells"][0]["nats"]["value"]) for row in plain])

    names = {
        "number of clusters and bound, nine rows": of_clusters,
        "entropy and judge's nats of samples, all rows": of_samples,
        "bound and judge's nats, rows with xi = 1": of_bounds,
    }
    for name, correlation in names.items():
        values = [correlation(rows) for rows in by_seed(result).values() if len(rows) == len(ROWS)]
        shown = ", ".join(f"{value:.2f}" for value in values) or MISSING
        yield (name, shown, f"{mean(values):.2f}" if len(values) > 1 else "-")


def _rank(pairs: Sequence[tuple[float, float]]) -> float:
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def tables(result: Mapping[str, Any]) -> str:
    """Return the tables, as they stand between the page's marks."""
    return "\n\n".join(
        (
            "**Bounds**, nats per token, each seed. The paper's column has logarithms of its "
            "perplexities, less that of HDLM-64.",
            table(
                ("row", "bound", "above hdlm-64", "paper"),
                [bounds_row(result, name) for name in ROWS],
            ),
            "**Samples**, each seed: 256 of 128 tokens, at most 64 calls. Without perturbation "
            "all transitions are forced.",
            table(
                (
                    "row",
                    "forced",
                    "judge, nats per token",
                    "entropy of a sample",
                    "distinct 2-grams",
                    "paper, judge above hdlm-64",
                ),
                [
                    samples_row(result, name, forced)
                    for name, row in ROWS.items()
                    for forced in (("yes",) if row.xi == 1 else ("no", "yes"))
                ],
            ),
            "**Rank correlations** (Spearman):",
            table(("between", "each seed", "mean"), [*correlations(result)]),
        )
    )


PAGE = Page("studies/hdlm_tables", "studies/hdlm_tables/page.py", tables)


def main() -> None:
    """Write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="tables.json of each call")
    result = collected(parser.parse_args().tables)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
