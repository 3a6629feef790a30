"""Table of docs/performance.md, from the files in benchmarks/results.

python -m benchmarks.table                # prints it
python -m benchmarks.table --docs docs    # rewrites the page between its markers
python -m benchmarks.table --check        # reports whether it would
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.measuring import FRESH, RESULTS
from benchmarks.rows import CPU, GPU, SAMPLERS, Measured, Row, middle, read
from studies.page import DOCS, fill, page, ruler

PAGE = DOCS / "performance.md"
BEGIN = "<!-- table: python -m benchmarks.table -->"
END = "<!-- end of table -->"
HEAD = "| row | against | target | measured | verdict |"
BESIDE = " on fresh pages |"


def render(results: Path = RESULTS) -> str:
    """Return all tables, each under its machine.

    The CPU's with another setting of the allocator beside it.
    """
    fresh = [f" {spread(read(row, results / FRESH))} |" for row in CPU]
    cpu = [
        HEAD + BESIDE,
        *(line(read(row, results)) + beside for row, beside in zip(CPU, fresh, strict=True)),
    ]
    samplers = [HEAD, *(line(read(row, results)) for row in SAMPLERS)]
    gpu = [HEAD, *(line(read(row, results)) for row in GPU)]
    return "\n\n".join(
        f"{title}: {where(rows, results)}\n\n" + "\n".join([lines[0], ruler(lines[0]), *lines[1:]])
        for title, rows, lines in (
            ("CPU", CPU, cpu),
            ("Samplers", SAMPLERS, samplers),
            ("GPU", GPU, gpu),
        )
    )


def line(measured: Measured) -> str:
    """Return a row of the table."""
    row = measured.row
    target = (
        "-"
        if row.target is None
        else f"{'≤' if row.at_most else '≥'} {number(row, row.target)}{row.unit}"
    )
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
    """Format a few digits, rounded towards the worse, so that a failing value does not appear to
    pass.
    """
    worse = math.ceil if row.at_most else math.floor
    if row.percent:
        return f"{worse(1000 * value) / 10:g} %"
    return f"{worse(value):,}" if value >= 100 else f"{worse(100 * value) / 100:g}"


def where(rows: Iterable[Row], results: Path) -> str:
    """Return the machines named in the files."""
    paths = dict.fromkeys(results / f"{row.file}.json" for row in rows)
    machines = [
        json.loads(path.read_text(encoding="utf-8"))["machine"] for path in paths if path.exists()
    ]
    devices = dict.fromkeys(
        f"{m['device']} ({m['processor']}, torch {m['torch']})" for m in machines
    )
    return f"{'; '.join(devices)}." if devices else "not measured yet."


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--docs", type=Path, help="folder of the page; without it the tables are printed"
    )
    options = parser.parse_args()
    tables = render(options.results)
    if options.check:
        old = PAGE.read_text(encoding="utf-8")
        sys.exit(
            0
            if page(old, tables, BEGIN, END) == old
            else f"{PAGE.name}: run python -m benchmarks.table --docs docs"
        )
    if options.docs is None:
        print(tables)
    else:
        fill(options.docs / PAGE.name, tables, BEGIN, END)


if __name__ == "__main__":
    main()
