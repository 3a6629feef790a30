"""Table of docs/performance.md, from the files in benchmarks/results.

python -m benchmarks.table                # prints it
python -m benchmarks.table --docs docs    # rewrites the page between its markers
python -m benchmarks.table --check        # reports whether it would
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


def ruler(head: str) -> str:
    """Return the line under the head of a table."""
    return "|" + " --- |" * (head.count("|") - 1)


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


@dataclass(frozen=True)
class Page:
    """Page of a result file: its tables stand between two marks.

    Args:
        name: name of the page and of its result file.
        source: module that the first mark names.
        tables: returns the tables of a result.
        draw: draws the pictures of a result into a folder.
    """

    name: str
    source: str
    tables: Callable[[dict[str, Any]], str]
    draw: Callable[[dict[str, Any], Path], None] | None = None

    @property
    def marks(self) -> tuple[str, str]:
        """Lines before and after the tables."""
        return f"<!-- tables: benchmarks/{self.source}.py -->", "<!-- end of tables -->"

    def write(self, path: Path, docs: Path | None) -> None:
        """Fill the page of a folder, and draw its pictures, from a result file.

        Without a folder print the tables.
        """
        result = json.loads(path.read_text(encoding="utf-8"))
        if docs is None:
            print(self.tables(result))
            return
        fill(docs / f"{self.name}.md", self.tables(result), *self.marks)
        if self.draw is not None:
            (docs / "images").mkdir(exist_ok=True)
            self.draw(result, docs / "images")


def measure(value: dict[str, Any], sign: str = "") -> str:
    """Format a value and its error, from a ``Measure`` or an evaluation's estimate."""
    error = value["standard_error"] if "standard_error" in value else value["error"]
    return f"{value['value']:{sign}.3f} ± {error:.3f}"


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
            if page(old, tables) == old
            else f"{PAGE.name}: run python -m benchmarks.table --docs docs"
        )
    if options.docs is None:
        print(tables)
    else:
        fill(options.docs / PAGE.name, tables)


if __name__ == "__main__":
    main()
