"""Samples of the runs of docs/structure.md, and their distance to the data."""

import io
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console

from recipes import generate
from recipes.config import Recipe
from recipes.data import Prepared, open_prepared
from recipes.data.sources.molecules import Molecules
from recipes.generation.sampling import Sampling
from recipes.metrics import molecules, music, pictures

COUNT, CALLS = 200, (4, 8, 16, 32, 64)
STRENGTHS, GUIDED_CALLS = (1.0, 3.0), 32
"""Strengths of guidance; those samples are made at so many calls."""


class Cell(NamedTuple):
    """A run: data set, process, seed and recipe."""

    data: str
    process: str
    seed: int
    recipe: Recipe


def draw(work: Path, run: Cell) -> None:
    """Draw the samples of a finished run that are not there yet."""
    folder = work / "drawn"
    folder.mkdir(exist_ok=True)
    for calls in CALLS:
        _drawn(folder / f"{run.recipe.output.folder.name}-{calls}.json", run, {None: COUNT}, Sampling(steps=calls))
    classes = open_prepared(run.recipe.data.folder).classes if "num_classes" in run.recipe.model else ()
    for strength in STRENGTHS if classes else ():
        sampling = {"steps": GUIDED_CALLS, "guidance": strength}
        labels = dict.fromkeys(classes, COUNT // len(classes))
        _drawn(folder / f"{run.recipe.output.folder.name}-guided-{strength:g}.json", run, labels, sampling)


def _drawn(path: Path, run: Cell, labels: Mapping[str | None, int], sampling: Sampling | Mapping[str, Any]) -> None:
    if path.exists():
        return
    tokens, marks = list[list[int]](), list[int]()
    for place, (label, count) in enumerate(labels.items()):
        given = sampling if isinstance(sampling, Sampling) else Sampling(label=label, **sampling)
        out = path.with_suffix(".jsonl")
        options = generate.Options(
            run=str(run.recipe.output.folder), samples=count, seed=run.seed, batch=50, sampling=given, out=out
        )
        generate.generate(options, Console(file=io.StringIO()))
        tokens += [json.loads(line)["tokens"] for line in out.read_text(encoding="utf-8").splitlines()]
        marks += [place] * count
        out.unlink()
    path.write_text(json.dumps({"tokens": tokens, "labels": marks}), encoding="utf-8")
    print(path.name, flush=True)


def measures(work: Path, given: Recipe) -> dict[str, dict[str, float]] | None:
    """Return the measures of a run's samples, by number of calls and strength of guidance; None if there are none."""
    found = {}
    for path in sorted((work / "drawn").glob(f"{given.output.folder.name}-*.json")):
        drawn = json.loads(path.read_text(encoding="utf-8"))
        key = path.stem.removeprefix(f"{given.output.folder.name}-")
        found[key] = _measured(given.data.folder, drawn["tokens"], drawn["labels"] if "guided" in key else None)
    return found or None


def _measured(folder: Path, tokens: Sequence[Sequence[int]], labels: Sequence[int] | None) -> dict[str, float]:
    """Return the measures of samples in the units of a data set."""
    data, rows = open_prepared(folder), [np.array(one) for one in tokens]
    if data.shape:
        ids = np.stack(rows)
        marks = None if labels is None else np.array(labels)
        return pictures.measure(_classifier(folder), ids, _held_out(data), marks)
    if data.manifest["symbols"]["kind"] == "molecules":
        names = _names(data)
        train, held = _molecules(folder)
        smiles = ["".join(names[token] for token in row) for row in rows]
        found = molecules.measure(smiles, held, train)
        return {name: found[name] for name in ("validity", "uniqueness", "novelty", "qed_distance")}
    return music.measure(rows, [data.validation[number] for number in range(len(data.validation))], _names(data))


def _names(data: Prepared) -> list[str]:
    return sorted(data.tokenizer.get_vocab(), key=data.tokenizer.get_vocab().__getitem__)


def _held_out(data: Prepared) -> np.ndarray:
    return np.stack([np.asarray(data.validation[number]) for number in range(len(data.validation))])


@cache
def _molecules(folder: Path) -> tuple[frozenset[str], list[str]]:
    """Return all training molecules of MOSES, and the held-out ones of the folder."""
    data = open_prepared(folder)
    names = _names(data)
    held = ["".join(names[token] for token in data.validation[number]) for number in range(len(data.validation))]
    return frozenset(Molecules().smiles()) - frozenset(held), held


@cache
def _classifier(folder: Path) -> pictures.Classifier:
    """Return a classifier of the labels of the training pictures."""
    data = open_prepared(folder)
    train = np.stack([np.asarray(data.train[number]) for number in range(len(data.train))])
    torch.manual_seed(0)
    return pictures.train_classifier(
        train, np.asarray(data.train.labels), data.shape, data.manifest["symbols"]["values"]
    )
