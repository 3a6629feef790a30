"""Table of docs/performance.md, from the files in benchmarks/results.

python -m benchmarks.table            # rewrites the page between its markers
python -m benchmarks.table --check    # reports whether it would
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.measuring import FRESH, RESULTS
from benchmarks.rows import CPU, GPU, SAMPLERS, Measured, Row, middle, read

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"
BEGIN, END = "<!-- table: python -m benchmarks.table -->", "<!-- end of table -->"
HEAD = "| row | against | target | measured | verdict |"
BESIDE = " on fresh pages |"


def render(results: Path = RESULTS) -> str:
    """Return all tables, each under its machine; the CPU's with another setting of the allocator beside it."""
    fresh = [f" {spread(read(row, results / FRESH))} |" for row in CPU]
    cpu = [HEAD + BESIDE, *(line(read(row, results)) + beside for row, beside in zip(CPU, fresh, strict=True))]
    samplers = [HEAD, *(line(read(row, results)) for row in SAMPLERS)]
    gpu = [HEAD, *(line(read(row, results)) for row in GPU)]
    return "\n\n".join(
        f"{title}: {where(rows, results)}\n\n" + "\n".join([lines[0], ruler(lines[0]), *lines[1:]])
        for title, rows, lines in (("CPU", CPU, cpu), ("Samplers", SAMPLERS, samplers), ("GPU", GPU, gpu))
    )


def ruler(head: str) -> str:
    """Return the line under the head of a table."""
    return "|" + " --- |" * (head.count("|") - 1)


def line(measured: Measured) -> str:
    """Return a row of the table."""
    row = measured.row
    target = "-" if row.target is None else f"{'≤' if row.at_most else '≥'} {number(row, row.target)}{row.unit}"
    return f"| {row.what} | {row.against} | {target} | {spread(measured)} | {measured.verdict} |"


def spread(measured: Measured) -> str:
    """Return the median of all runs and their range."""
    row, values = measured
    if not values:
        return "-"
    shown = f"{number(row, middle(values))}{row.unit}"
    ends = [number(row, end) for end in (min(values), max(values))]
    return shown if len(values) == 1 else f"{shown} ({ends[0]} to {ends[1]}, {len(values)} runs)"


def number(row: Row, value: float) -> str:
    """Format a few digits, rounded towards the worse, so that a failing value does not appear to pass."""
    worse = math.ceil if row.at_most else math.floor
    if row.percent:
        return f"{worse(1000 * value) / 10:g} %"
    return f"{worse(value):,}" if value >= 100 else f"{worse(100 * value) / 100:g}"


def where(rows: Iterable[Row], results: Path) -> str:
    """Return the machines named in the files."""
    paths = dict.fromkeys(results / f"{row.file}.json" for row in rows)
    machines = [json.loads(path.read_text(encoding="utf-8"))["machine"] for path in paths if path.exists()]
    found = dict.fromkeys(f"{m['device']} ({m['processor']}, torch {m['torch']})" for m in machines)
    return f"{'; '.join(found)}." if found else "not measured yet."


def page(text: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the text with the table between its markers.

    Raises:
        ValueError: a marker is missing.
    """
    if begin not in text or end not in text:
        raise ValueError(f"the page must hold the lines {begin} and {end}")
    before, rest = text.split(begin)
    # a page of two tables has two end markers
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end, 1)[1]}"


def fill(path: Path, table: str, begin: str = BEGIN, end: str = END) -> None:
    """Insert a table between a page's markers."""
    path.write_text(page(path.read_text(encoding="utf-8"), table, begin, end), encoding="utf-8")


def measure(value: dict[str, Any], sign: str = "") -> str:
    """Format a value and its error, from a ``Measure`` or an evaluation's estimate."""
    error = value["standard_error"] if "standard_error" in value else value["error"]
    return f"{value['value']:{sign}.3f} ± {error:.3f}"


def result(about: str | None) -> dict[str, Any]:
    """Read the result file given on the command line."""
    parser = argparse.ArgumentParser(description=about and about.splitlines()[0])
    parser.add_argument("result", type=Path)
    content: dict[str, Any] = json.loads(parser.parse_args().result.read_text(encoding="utf-8"))
    return content


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    old = options.page.read_text(encoding="utf-8")
    new = page(old, render(options.results))
    if options.check:
        sys.exit(0 if new == old else f"{options.page.name}: run python -m benchmarks.table")
    options.page.write_text(new, encoding="utf-8")
    print(render(options.results))


if __name__ == "__main__":
    main()
