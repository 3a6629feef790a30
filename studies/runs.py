"""Result files of studies, and the trained runs that they are made from."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes.config import Recipe, differences, read_recipe
from recipes.engine.checkpoint import name_of
from recipes.engine.setup import write_out
from recipes.evaluation.report import write
from recipes.metrics import Terms, scoring
from recipes.model_io import RECIPE

Run = dict[str, Any]
"""Entry of a result file for one run."""


def written(path: Path, result: dict[str, Any]) -> None:
    """Write JSON with each list of numbers in one line; the file is written whole or not at all."""
    text = json.dumps(result, indent=1)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(
        re.sub(r"\[[^][{}\"]*\]", lambda found: " ".join(found[0].split()), text) + "\n",
        encoding="utf-8",
    )
    unfinished.replace(path)


def by_text(terms: Terms) -> Run:
    """Return nats and tokens of each text, for comparison with a run on another machine."""
    return {
        "nats": [round(nats, 6) for nats in terms.nats.sum(1).tolist()],
        "tokens": terms.tokens.tolist(),
    }


def finished(given: Recipe) -> bool:
    """Return whether a run of this recipe has made all of its steps.

    Weights are published during training too, and may be those of another recipe.
    """
    folder = given.output.folder
    trained = (folder / "checkpoints" / name_of(given.steps)).is_dir()
    # a run writes out the weighting and the density of times that are None in its recipe
    whole = replace(given, loss=write_out(given))
    return trained and not differences(read_recipe(folder / RECIPE), whole)


def curve(folder: Path) -> list[tuple[int, float, float]]:
    """Return the validation bounds during training: step, nats per token, standard error."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        (r["step"], r["nats_per_token"], r["standard_error"])
        for r in records
        if r["kind"] == "bound"
    ]


def judged(paths: Iterable[Path], name: str, count: int | None = None) -> None:
    """Score texts of the files that are not scored yet, by a causal language model.

    Args:
        paths: files of drawn samples.
        name: the language model, a folder or a name.
        count: number of texts of each file, the first ones; None for all.
    """
    scorer = scoring.load_scorer(name)
    for path in paths:
        told = json.loads(path.read_text(encoding="utf-8"))
        if "scores" in told:
            continue
        found = scoring.score(scorer, told["texts"][:count])
        told["scores"] = {"nats": found.nats.tolist(), "tokens": found.tokens.tolist()}
        told["judge"] = {"name": Path(name).name, "revision": scorer.revision}
        write(path, told)
        print(path.name, f"{found.nats.sum() / found.tokens.sum():.3f} nats", flush=True)
