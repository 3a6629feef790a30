"""Pages of results: tables between two marks, and the format of a value with its error.

python -m studies.page blocks scales    # rewrites the tables and figures of these studies
"""

import argparse
import importlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ddlib import Measure

DOCS = Path(__file__).parents[1] / "docs"


def ruler(head: str) -> str:
    """Return the line under the head of a table."""
    return "|" + " --- |" * (head.count("|") - 1)


def page(text: str, table: str, begin: str, end: str) -> str:
    """Return the text with the table between its markers.

    Raises:
        ValueError: a marker is missing.
    """
    if begin not in text or end not in text:
        raise ValueError(f"the page must hold the lines {begin} and {end}")
    before, rest = text.split(begin)
    # a page of two tables has two end markers
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end, 1)[1]}"


def fill(path: Path, table: str, begin: str, end: str) -> None:
    """Insert a table between a page's markers."""
    path.write_text(page(path.read_text(encoding="utf-8"), table, begin, end), encoding="utf-8")


@dataclass(frozen=True)
class Page:
    """Page of a result file: its tables stand between two marks.

    Args:
        name: path of the page in the folder of the documentation, without suffix.
        source: path of the module that the first mark names.
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
        return f"<!-- tables: {self.source} -->", "<!-- end of tables -->"

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


def less(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the difference of two bounds on the same texts, with its error."""
    nats, others = (torch.tensor(run["nats"], dtype=torch.float64) for run in (one, other))
    return asdict(
        Measure.ratio(nats - others, torch.tensor(one["tokens"], dtype=torch.float64), "nats/token")
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="+", help="folders of studies with a page.py")
    for study in parser.parse_args().studies:
        module = importlib.import_module(f"studies.{study}.page")
        module.PAGE.write(Path(__file__).parent / study / "results.json", DOCS)


if __name__ == "__main__":
    main()
