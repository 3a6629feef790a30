"""Report of an evaluation on a console and in a file."""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ddlib import Measure
from ddlib.paces import Together
from recipes.evaluation.exact import how_exact
from recipes.generation.sampling import Sampling
from recipes.metrics import References, basis
from recipes.model_io import WEIGHTS


def value_and_error(measure: Measure) -> dict[str, float | None]:
    """Return an estimate for a JSON file: ``value`` and its standard ``error``, None where a single
    sample has none.
    """
    return {
        "value": measure.value,
        "error": None if math.isnan(measure.standard_error) else measure.standard_error,
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Show a table of all results of ``recipes.evaluate``, and below it the method."""
    setup = result["protocol"]
    table = Table(title=f"{setup['run']}  {setup['checkpoint_sha256'][:12]}", title_justify="left")
    for heading in ("", "value", "± over sequences", "± over replicates", "unit"):
        table.add_column(heading, justify="left" if heading in ("", "unit") else "right")
    rows = dict(result["bound"])
    rows |= {f"label {name}": row for name, row in result["by_label"].items()}
    for name, row in result["by_field"].items():
        rows[f"field {name}"] = row | {"unit": f"{row['unit']}; unigram {row['unigram']:.4f}"}
    if (likely := result["likelihood"]) is not None:
        rows |= {f"likelihood {name}": row for name, row in likely.items() if name != "protocol"}
    if (generative := result["generative"]) is not None:
        rows |= {f"generative {name}": generative[name] for name in ("perplexity", "entropy")}
    for name, row in rows.items():
        noise = "" if row["noise"] is None else f"{row['noise']:.4f}"
        table.add_row(
            name.replace("_", " "),
            f"{row['value']:.4f}",
            f"{row['error']:.4f}",
            noise,
            row["unit"],
        )
    for name, value in result["references"].items():
        table.add_row(f"{name} model", f"{value:.4f}", "", "", "nats/token")
    measured = {} if (drawn := result["samples"]) is None else drawn["metrics"]
    for name, value in measured.items():
        table.add_row(f"samples {name.replace('_', ' ')}", f"{value:.4f}", "", "", "")
    console.print(table)
    noun = "text" if "text" in setup else "sequence"
    grid = "" if isinstance(setup["steps"], str) else f"in {setup['steps']} steps, "
    if setup["pace"] != repr(Together()):
        grid = f"at {setup['pace']}, {grid}"
    console.print(
        f"bound: {grid}over {basis(setup['sequences'], setup['replicates'], noun)}, "
        f"{setup['tokens']} tokens; the ± "
        "over sequences includes the remaining noise, the ± over replicates (draws) only times and "
        "noise; times "
        f"{setup['density_of_times']}, errors {setup['method']}"
        + (f"; {setup['caveat']}" if setup["caveat"] else "")
    )
    console.print(
        "beside it: "
        f"{References(**result['references']).beside(result['bound']['nats_per_token']['value'])}"
    )
    if (same := result["validation"]) is not None:
        console.print(
            f"of these, the draws of validation in training: {same['value']:.4f} ± "
            f"{same['error']:.4f} {same['unit']} "
            f"over {basis(same['sequences'], same['draws'], noun)}"
        )
    if likely is not None:
        console.print(how_exact(likely))
    if drawn is not None:
        console.print(f"samples: {drawn['samples']}, {protocol_text(drawn['protocol'])}")
    if generative is not None:
        drawn = generative["protocol"]
        console.print(
            f"generative: {generative['samples']} samples of {drawn['length']} tokens "
            f"({generative['empty_samples']} empty), {protocol_text(drawn)}; scored by "
            f"{drawn['scorer']}"
        )


def result_path(file: str, model: str, out: Path | None = None) -> Path:
    """Return the path of a result: in the folder of a run, or here with the name of the model in
    that of the file.

    Weights have a manifest of their folder, so nothing is written among them:
    evaluation-owner--name.json.

    Args:
        file: name of the file.
        model: folder of a run or of weights, or a name on the hub.
        out: the path that was given, which is returned.
    """
    if out is not None or (Path(model) / WEIGHTS).is_dir():
        return out or Path(model) / file
    name = re.sub(r"[^\w.-]+", "--", str(Path(model))).strip("-.")
    return Path(f"{Path(file).stem}-{name}{Path(file).suffix}" if name else file)


def check_model(argument: str, path: Path, model: str) -> None:
    """Raise for a file that holds the result of another model.

    Args:
        argument: name of the argument, for messages.
        path: the file that would be written. In the folder of the model it may be of a folder that
            was renamed.
        model: name or folder of the model.

    Raises:
        ValueError: the file is of another model.
    """
    if not path.exists() or path.resolve().parent == Path(model).resolve():
        return
    try:
        there = str(json.loads(path.read_text(encoding="utf-8"))["protocol"]["run"])
    except (ValueError, KeyError, TypeError):
        return
    if Path(there).resolve() != Path(model).resolve():
        raise ValueError(
            f"{argument}={path}: holds the result of {there}, not of {model}: choose another by "
            "--out, or remove it"
        )


def write(path: Path, result: dict[str, Any]) -> None:
    """Write the file atomically."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(
            json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def protocol_text(settings: Mapping[str, Any]) -> str:
    """Return a short description of a protocol: sampler, steps, temperature, top-p, and every
    option that was set.
    """
    always = ("temperature", "top_p")
    turned = [
        f
        for f in fields(Sampling)
        if f.name not in ("sampler", "steps") and settings[f.name] != f.default
    ]
    names = dict.fromkeys([*always, *(field.name for field in turned)])
    knobs = [f"{name.replace('_', '-')} {_knob(settings[name])}" for name in names]
    return ", ".join([settings["sampler"], f"{settings['steps']} steps", *knobs])


def _knob(value: object) -> str:
    if isinstance(value, tuple):
        return (
            " to ".join(map(_knob, value))
            if all(isinstance(one, float) for one in value)
            else str(list(value))
        )
    return f"{value:g}" if isinstance(value, float) else str(value)
