"""Run of the study of synthetic tables, and its page.

    python -m studies.synthetic_tables.run               # what the result file lacks, then the page
    python -m studies.synthetic_tables.run --until TIME  # no run begins after this time, UTC
    python -m studies.synthetic_tables.run --pages       # the page alone
    python -m studies.synthetic_tables.run --tiny FOLDER # all runs that need no other package

The same command continues after a kill. The protocol is protocol.md; requirements.txt has the
baselines. One thread.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from recipes.engine.provenance import provenance
from recipes.metrics.tables import (
    Codes,
    Columns,
    closest,
    column_variation,
    cramers_v,
    floor,
    frequencies,
    halved,
    measure,
    merged,
    transfer,
)
from studies.page import page
from studies.runs import written
from studies.synthetic_tables.data import TABLES, Split, Table, split
from studies.synthetic_tables.generators import GENERATORS, Task
from studies.synthetic_tables.pages import BEGIN, IMAGES, PAGE, draw, tables
from studies.synthetic_tables.settings import SEEDS, TINY, Sizes, key_of
from studies.tables import END

RESULTS = Path(__file__).parent / "results.json"
GROUPS = 8
CLOSEST = 1000
"""Rows whose closest record is searched."""


class Study:
    """The runs of the study: each measures what the result file lacks.

    Args:
        out: result file, written after each run.
        frames: returns a table by its name.
        sizes: sizes of the study.
        until: time after which no run begins.
    """

    def __init__(
        self,
        out: Path,
        frames: Mapping[str, pd.DataFrame],
        sizes: Sizes,
        until: datetime | None = None,
    ) -> None:
        self.out = out
        self.sizes = sizes
        self.until = until
        self.splits = {
            name: split(TABLES[name], frame, sizes.held_out) for name, frame in frames.items()
        }
        self.result: dict[str, Any] = {"starts": [], "seconds": sizes.seconds}
        self.result |= {"tables": {}, "floors": {}, "runs": {}}
        if out.exists():
            self.result = json.loads(out.read_text(encoding="utf-8"))

    def run(self) -> None:
        """Run all generators."""
        self.result["starts"].append(provenance() | {"threads": torch.get_num_threads()})
        for stage in self.sizes.stages:
            for name in stage.tables:
                if name not in self.result["floors"]:
                    self._floor(name)
            for seed, name, arm in product(stage.seeds, stage.tables, stage.arms):
                key = key_of(name, arm, seed)
                if self.until is not None and datetime.now(UTC) > self.until:
                    return
                if key not in self.result["runs"]:
                    self._keep("runs", key, self._arm(name, arm, seed))

    def _floor(self, name: str) -> None:
        data = self.splits[name]
        columns = data.columns
        self.result["tables"][name] = {
            "names": [*columns.names],
            "sizes": [*columns.sizes],
            "ordered": [*columns.ordered],
            "training": len(data.codes),
            "held_out": len(data.held_out),
        }
        measured = plain(floor(_distance(data), data.held_out, self.sizes.halvings))
        measured |= plain(
            floor(_classifier(data, TABLES[name]), data.held_out, self.sizes.classifiers)
        )
        measured |= _closest(data.held_out, data)
        self._keep("floors", name, measured | _shapes(data.held_out, columns))

    def _arm(self, name: str, arm: str, seed: int) -> dict[str, Any]:
        """Train a generator, and measure its samples."""
        data = self.splits[name]

        def facts_of(other: str) -> Mapping[str, float]:
            facts: Mapping[str, float] = self.result["runs"][key_of(name, other, seed)]["facts"]
            return facts

        made = GENERATORS[arm](Task(data, self.sizes, seed, facts_of))
        samples = made.samples
        measured = plain(halved(_distance(data), samples, data.held_out, self.sizes.halvings))
        classifier = _classifier(data, TABLES[name])
        measured |= plain(halved(classifier, samples, data.held_out, self.sizes.classifiers))
        measured |= _closest(samples, data)
        measured["variation"] = rounded(column_variation(samples, data.held_out, data.columns))
        if seed == SEEDS[0]:
            measured |= _shapes(samples, data.columns)
        facts = {key: round(value, 2) for key, value in made.facts.items()}
        return {"facts": facts, "bits": made.bits} | measured

    def _keep(self, stage: str, name: str, measured: dict[str, Any]) -> None:
        self.result[stage][name] = measured
        written(self.out, self.result)
        print(f"{datetime.now(UTC):%H:%M:%S} {stage}: {name}", flush=True)


def _distance(data: Split) -> Any:
    return lambda rows, reference: measure(rows, reference, data.columns, GROUPS)


def _classifier(data: Split, table: Table) -> Any:
    def classify(rows: Codes, reference: Codes) -> dict[str, float]:
        quality = transfer(rows, reference, data.columns, table.target)
        return {"accuracy": quality.accuracy, "classifier_bits": quality.bits}

    return classify


def _closest(rows: Codes, data: Split) -> dict[str, Any]:
    distances = closest(rows[:CLOSEST], data.codes, data.columns)
    copies = distances == 0
    return {
        "closest": {
            "value": float(distances.mean()),
            "error": float(distances.std() / np.sqrt(len(distances))),
        },
        "copies": {
            "value": float(copies.mean()),
            "error": float(copies.std() / np.sqrt(len(copies))),
        },
    }


def _shapes(rows: Codes, columns: Columns) -> dict[str, Any]:
    """Return what the pictures show: marginals, and Cramér's V."""
    shares = [frequencies(rows[:, i], size) for i, size in enumerate(columns.sizes)]
    return {
        "shares": [rounded(each) for each in shares],
        "cramers_v": [rounded(row) for row in cramers_v(*merged(rows, columns, GROUPS))],
    }


def plain(measures: Mapping[str, Any]) -> dict[str, Any]:
    """Return values and errors as plain numbers."""
    return {
        name: {"value": each.value, "error": each.standard_error} for name, each in measures.items()
    }


def rounded(values: np.ndarray) -> list[float]:
    """Return five digits of each value."""
    return [round(float(value), 5) for value in values]


def stored(out: Path) -> dict[str, Any]:
    """Return the result file, or an empty result."""
    return json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}


def page_of(path: Path, result: Mapping[str, Any]) -> str:
    """Return the page with the tables of a result."""
    return page(path.read_text(encoding="utf-8"), tables(result), BEGIN, END)


def artificial(rows: int = 400) -> dict[str, pd.DataFrame]:
    """Return a small table with the columns of bikes."""
    generator = np.random.default_rng(0)
    hour = generator.integers(24, size=rows)
    numbers = {
        name: np.round(hour / 24 + generator.random(rows), 2)
        for name in ("temp", "atemp", "hum", "windspeed", "casual", "registered", "bikers")
    }
    categories = {
        name: generator.integers(2 + i, size=rows)
        for i, name in enumerate(TABLES["bikes"].categories)
    }
    return {"bikes": pd.DataFrame({"hr": hour} | categories | numbers)}


def main(words: Sequence[str] | None = None) -> None:
    """Run the study, and write its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="result file")
    parser.add_argument("--page", type=Path, default=PAGE, help="page with the markers")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder of the pictures")
    parser.add_argument("--files", type=Path, default=Path("runs/packages"), help="packages")
    parser.add_argument("--until", type=datetime.fromisoformat, help="last begin of a run, UTC")
    parser.add_argument("--pages", action="store_true", help="write the page alone")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="all runs at tiny sizes")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    sizes = Sizes()
    if options.tiny is not None:
        sizes = TINY
        options.out = options.tiny / "results.json"
        options.page = options.tiny / "synthetic_tables.md"
        options.images = options.tiny
        options.page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    if not options.pages:
        frames = artificial()
        if options.tiny is None:
            frames = {name: table.read(options.files) for name, table in TABLES.items()}
        until = None if options.until is None else options.until.replace(tzinfo=UTC)
        Study(options.out, frames, sizes, until).run()
    result = stored(options.out)
    options.page.write_text(page_of(options.page, result), encoding="utf-8")
    draw(result, options.images)


if __name__ == "__main__":
    main()
