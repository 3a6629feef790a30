"""Runs of a study: distributed over processes and machines, compared text by text, saved as JSON."""

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ddlib import Measure
from recipes.config import Recipe
from recipes.engine import train
from recipes.engine.checkpoint import name_of
from recipes.metrics import Terms

Run = dict[str, Any]
"""Entry of a result file for one run."""


def arguments(about: str, commands: tuple[str, ...]) -> argparse.ArgumentParser:
    """Return the arguments of a command line: subcommand, folder, and the share of the runs."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("what", choices=commands)
    parser.add_argument("work", type=Path)
    parser.add_argument("--part", type=int, default=0, help="index of this process, from 0")
    parser.add_argument("--of", type=int, default=1, help="number of processes that share the runs")
    parser.add_argument("--out", type=Path, help="the result file")
    return parser


def shared(recipes: list[Recipe], options: argparse.Namespace) -> None:
    """Train this process's share of the runs, until a signal stops it."""
    for given in recipes[options.part :: options.of]:
        if not train(given):
            return


def written(path: Path, result: dict[str, Any]) -> None:
    """Write JSON with each list of numbers in one line."""
    text = json.dumps(result, indent=1)
    path.write_text(re.sub(r"\[[^][{}\"]*\]", lambda found: " ".join(found[0].split()), text) + "\n", encoding="utf-8")


def by_text(terms: Terms) -> Run:
    """Return nats and tokens of each text, for comparison with a run on another machine."""
    return {"nats": [round(nats, 6) for nats in terms.nats.sum(1).tolist()], "tokens": terms.tokens.tolist()}


def less(one: Run, other: Run) -> dict[str, Any]:
    """Return the difference of two bounds on the same texts, with its error."""
    nats, others = (torch.tensor(run["nats"], dtype=torch.float64) for run in (one, other))
    return asdict(Measure.ratio(nats - others, torch.tensor(one["tokens"], dtype=torch.float64), "nats/token"))


def earlier(path: Path | None, *names: str) -> dict[tuple[Any, ...], Run]:
    """Return the runs of a result file, if it exists, keyed by the values of these names.

    A study takes days, and its runs may be made on one machine after another.
    """
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path is not None and path.exists() else []
    return {tuple(run[name] for name in names): run for run in runs}


def finished(given: Recipe) -> bool:
    """Return whether a run has made all of its steps; weights are published during training too."""
    return (given.output.folder / "checkpoints" / name_of(given.steps)).is_dir()


def curve(folder: Path) -> list[tuple[int, float, float]]:
    """Return the validation bounds during training: step, nats per token, standard error."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], r["nats_per_token"], r["standard_error"]) for r in records if r["kind"] == "bound"]
