"""Samples of sequences with several alphabets, as ``recipes.generate`` prints and writes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from recipes.generation.rows import (
    TABULAR,
    draw,
    read_given,
    read_incomplete,
    texts_of,
    write_rows,
)
from recipes.generation.sampling import Sampling
from recipes.model_io import FoundModel, ModelFiles

SHOWN = 20
"""Maximum number of rows that are printed."""

FOR_TEXT = (
    "prompt",
    "prompts",
    "chat",
    "unknown",
    "length",
    "regex",
    "json_schema",
    "new",
    "stream",
    "trajectory",
    "html",
)
"""Options that rows of several alphabets do not have."""

FOR_NEW_ROWS = ("samples", "numbers")
"""Options that the rows of a table to impute do not have: each is drawn once, by its place."""


@dataclass(frozen=True)
class RowRequest:
    """Rows to draw."""

    given: str | None
    """Values that all of them have, see ``read_given``."""
    impute: Path | None
    """Table whose missing values are drawn."""
    numbers: tuple[int, ...]
    """Numbers of the rows, without a table."""


def wants_rows(options: Mapping[str, Any], default: Mapping[str, Any], saved: ModelFiles) -> bool:
    """Return whether samples are rows: of data with a field for each position, or given values.

    Args:
        options: of ``recipes.generate``, by name.
        default: their defaults.
        saved: the model.

    Raises:
        ValueError: options of rows with another model, or of texts with rows.
    """
    layout = saved.layout
    out = options["out"]
    asked = {name: options[name] for name in ("given", "impute") if options[name] is not None}
    fielded = layout is not None and bool(layout.fields)
    if not fielded or layout.contexts:
        rule = "has given tokens" if fielded else "has one alphabet"
        refused = ("impute",) if fielded else tuple(asked)
        for name, value in ((name, asked[name]) for name in refused if name in asked):
            raise ValueError(
                f"{name}={value}: {saved.name} {rule}, must have a field for each value and none "
                "given, as the columns of a table"
            )
        if out is not None and out.suffix in TABULAR:
            raise ValueError(f"out={out}: {saved.name} has no rows, must be another file")
        return False
    if not asked and not layout.is_row:
        return False
    for name in FOR_TEXT:
        if options[name] != default[name]:
            raise ValueError(
                f"{name}={options[name]!r}: not for {saved.name}, which has several alphabets; "
                "given states the values that are kept"
            )
    for name in FOR_NEW_ROWS:
        if options["impute"] is not None and options[name] != default[name]:
            raise ValueError(
                f"{name}={options[name]}: not with impute={options['impute']}, whose rows are "
                "completed once each; another seed completes them in another way"
            )
    if out is not None and out.suffix not in TABULAR:
        raise ValueError(f"out={out}: must end in {' or '.join(TABULAR)}, a row per sample")
    return True


def generate_rows(
    found: FoundModel,
    wanted: RowRequest,
    sampling: Sampling,
    seed: int,
    batch: int,
    out: Path | None,
    console: Console,
) -> list[str]:
    """Draw, print and save rows; return each as a line.

    Args:
        found: the model, whose layout has fields.
        wanted: the rows.
        sampling: options of the draws.
        seed: seed of the noise.
        batch: rows at a time.
        out: file for the rows.
        console: for the first rows.

    Raises:
        ValueError: as ``read_given``, ``read_incomplete`` and ``draw``.
    """
    layout = found.files.layout
    numbers = list(wanted.numbers)
    if wanted.impute is None:
        rows = read_given(layout, wanted.given or "", len(numbers))
    else:
        rows = read_incomplete(layout, wanted.impute)
        numbers = list(range(len(rows.x)))
    sampling.check_files(found.files)
    complete = wanted.impute is not None
    drawn = draw(found.load(), rows, sampling, seed, batch, complete, numbers)
    texts = texts_of(layout, drawn, rows, seed, numbers)
    table = Table(*layout.headings)
    for row in texts[:SHOWN]:
        table.add_row(*("" if one is None else escape(one) for one in row))
    console.print(table)
    if len(texts) > SHOWN:
        console.print(f"and {len(texts) - SHOWN:,} more rows")
    if out is not None:
        write_rows(out, layout, texts)
        console.print(f"rows: {out}", markup=False, soft_wrap=True)
    return [", ".join("" if one is None else one for one in row) for row in texts]
