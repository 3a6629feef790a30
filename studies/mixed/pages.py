"""Tables of the study of pictures beside their labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from studies.mixed.models import MODELS
from studies.tables import MISSING, interval, table

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "mixed.md"
BEGIN = "<!-- tables: python -m studies.mixed.run -->"
SEEDS = (0, 1, 2)

Result = Mapping[str, Any]


def of_seeds(result: Result, name: str) -> list[Result]:
    """Return the measurements of a model by seed."""
    runs = result.get("runs", {})
    return [runs[key] for key in (f"{name} | {seed}" for seed in SEEDS) if key in runs]


def cell(runs: Sequence[Result], key: str) -> str:
    """Return the mean and the 95 % interval over seeds; - for what a model does not have."""
    if runs and key not in runs[0]:
        return "-"
    return interval([run[key] for run in runs])


def tables(result: Result) -> str:
    """Return the tables of the page."""
    keys = ("accuracy", "nats", "picture_nats", "reverse_accuracy", "right_class")
    rows = []
    for name in MODELS:
        runs = of_seeds(result, name)
        seconds = f"{mean(run['seconds'] for run in runs):.0f}" if runs else MISSING
        rows.append([name, *(cell(runs, key) for key in keys), seconds])
    data = result.get("data", {})
    known = [f"{data[key]:.3f}" if key in data else MISSING for key in ("accuracy", "nats")]
    rows.append(["logistic regression", *known, "-", "-", "-", "-"])
    share = f"{data['right_class']:.3f}" if data else MISSING
    rows.append(["test pictures themselves", "-", "-", "-", "-", share, "-"])
    heading = [
        "model",
        "accuracy",
        "nats of a label",
        "nats of a picture given its label",
        "accuracy by p(picture given label)",
        "samples of their class",
        "seconds",
    ]
    return table(heading, rows)
