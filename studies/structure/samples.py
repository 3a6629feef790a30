"""Samples of the runs of docs/studies/structure.md, and their distance to the data."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from recipes import generate
from recipes.config import Recipe
from recipes.data import open_prepared
from recipes.evaluation.samples import metrics_of
from recipes.generation.sampling import Sampling
from studies.structure.page import JUMPS

FLAT = ("masks", "GIDD", "uniform")
"""Processes without levels between tokens and noise."""
Measures = dict[str, float]
"""Measures of one set of samples, by name."""


class Cell(NamedTuple):
    """A run: data set, process, seed and recipe."""

    data: str
    process: str
    seed: int
    recipe: Recipe


@dataclass(frozen=True)
class Samples:
    """Numbers of the samples of a run."""

    count: int = 200
    calls: tuple[int, ...] = (4, 8, 16, 32, 64)
    strengths: tuple[float, ...] = (1.0, 3.0)
    """Strengths of guidance."""
    guided_calls: int = 32
    jump_calls: tuple[int, ...] = (8, 64)
    """Calls with equally many expected jumps in each step, for processes with several levels."""

    def draw(self, work: Path, run: Cell) -> None:
        """Draw the samples of a finished run that are not there yet."""
        folder = work / "drawn"
        folder.mkdir(exist_ok=True)
        unlabelled = {None: self.count}
        sets: dict[str, tuple[Mapping[str | None, int], dict[str, Any]]] = {
            f"{calls}": (unlabelled, {"steps": calls}) for calls in self.calls
        }
        if run.process not in FLAT:
            sets |= {
                f"{JUMPS}{n}": (unlabelled, {"steps": n, "spacing": "jumps"})
                for n in self.jump_calls
            }
        if run.recipe.model.get("num_classes"):
            classes = open_prepared(run.recipe.data.folder).classes
            each = dict.fromkeys(classes, self.count // len(classes))
            for strength in self.strengths:
                sets[f"guided-{strength:g}"] = (
                    each,
                    {"steps": self.guided_calls, "guidance": strength},
                )
        for key, (labels, sampling) in sets.items():
            _drawn(folder / f"{run.recipe.output.folder.name}-{key}.json", run, labels, sampling)


def _drawn(
    path: Path, run: Cell, labels: Mapping[str | None, int], sampling: Mapping[str, Any]
) -> None:
    if path.exists():
        return
    tokens, marks = list[list[int]](), list[int]()
    for place, (label, count) in enumerate(labels.items()):
        given = Sampling(label=label, **sampling)
        out = path.with_suffix(".jsonl")
        options = generate.Options(
            run=str(run.recipe.output.folder),
            samples=count,
            seed=run.seed,
            batch=50,
            sampling=given,
            out=out,
        )
        generate.generate(options, Console(file=io.StringIO()))
        tokens += [
            json.loads(line)["tokens"] for line in out.read_text(encoding="utf-8").splitlines()
        ]
        marks += [place] * count
        out.unlink()
    path.write_text(json.dumps({"tokens": tokens, "labels": marks}), encoding="utf-8")
    print(path.name, flush=True)


def measures(work: Path, given: Recipe, known: Mapping[str, Measures]) -> dict[str, Measures]:
    """Return the measures of a run's samples, by number of calls and strength of guidance.

    Those known are kept.
    """
    name, data = given.output.folder.name, open_prepared(given.data.folder)
    paths = {
        path.stem.removeprefix(f"{name}-"): path
        for path in sorted((work / "drawn").glob(f"{name}-*.json"))
    }
    new = {key: path for key, path in paths.items() if key not in known}
    found, metrics = dict(known), metrics_of(None, data) if new else None
    for key, path in new.items():
        drawn = json.loads(path.read_text(encoding="utf-8"))
        rows, labels = [np.array(one) for one in drawn["tokens"]], np.array(drawn["labels"])
        found[key] = metrics.measure(rows, data, labels if "guided" in key else None)
    return found
