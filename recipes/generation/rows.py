"""Sequences of several alphabets, such as rows of a table: some values given, the others drawn."""

import csv
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import ddlib as dd
from ddlib.typing import Denoiser
from recipes.data.fields import Field
from recipes.data.layout import Layout
from recipes.domains.tables.reading import Column, read_columns
from recipes.domains.tables.schema import tokens
from recipes.generation.given import read_values
from recipes.generation.sampling import NOISE, Sampling
from recipes.model_io import LoadedModel, make_sampler

TABULAR = (".csv", ".parquet")
"""Suffixes of files of rows."""

WITHIN = NOISE + 1
"""Number of the step whose noise draws numbers within their cells."""

Texts = Sequence[Sequence[str | None]]
"""Values of rows; None for a missing one."""


class Rows:
    """Rows to draw: the tokens that are given, and the texts of the given values.

    Args:
        x: tokens, any where none is given.
        given: True at given tokens.
        texts: the given values as they were written.
    """

    def __init__(self, x: Int[Tensor, "N L"], given: Bool[Tensor, "N L"], texts: Texts) -> None:
        self.x = x
        self.given = given
        self.texts = texts


def read_given(layout: Layout, text: str, count: int) -> Rows:
    """Return rows with the same given values.

    Args:
        layout: layout of the data.
        text: see ``read_values``.
        count: number of rows.

    Raises:
        ValueError: as ``read_values``.
    """
    length = len(layout.positions)
    row = np.zeros(length, dtype=np.int64)
    known = np.zeros(length, dtype=bool)
    texts: list[str | None] = [None] * length
    for place, value in read_values(layout, text).items():
        row[place] = value.token
        known[place] = True
        texts[place] = value.text
    x, given = (torch.from_numpy(one).expand(count, -1) for one in (row, known))
    return Rows(x, given, [texts] * count)


def read_incomplete(layout: Layout, path: Path) -> Rows:
    """Return the rows of a table, whose missing values are drawn; columns that it lacks too.

    Args:
        layout: layout of the data.
        path: .csv, .tsv or .parquet.

    Raises:
        FileNotFoundError, ValueError: as ``read_columns``; a column that the model lacks, with the
            nearest; a value that its column lacks, with the row; no missing value.
    """
    columns = read_columns(str(path))
    for name in columns:
        if name not in layout.positions:
            near = get_close_matches(name, layout.positions, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"impute={path}: has the column {name!r}, which the model lacks{hint}; leave it out"
            )
    count = len(next(iter(columns.values())))
    parts = [_known(field, columns.get(field.name), count) for field in layout.by_position]
    x = torch.from_numpy(np.stack([part[0] for part in parts], 1))
    given = torch.from_numpy(np.stack([part[1] for part in parts], 1))
    if bool(given.all()):
        raise ValueError(f"impute={path}: no value is missing")
    return Rows(x, given, list(zip(*(part[2] for part in parts), strict=True)))


def _known(
    field: Field, column: Column | None, count: int
) -> tuple[Int[np.ndarray, " N"], Bool[np.ndarray, " N"], list[str | None]]:
    """Return the tokens of a column, True where they are given, and the values as texts."""
    if column is None:
        return np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool), [None] * count
    return tokens(field, column, absent=0), ~column.missing, column.texts


@torch.no_grad()
def draw(
    saved: LoadedModel,
    rows: Rows,
    sampling: Sampling,
    seed: int = 0,
    batch: int = 256,
    complete: bool = False,
    numbers: Sequence[int] | None = None,
) -> Int[Tensor, "N L"]:
    """Draw the values that are not given; a row depends on its number, not on the others.

    Args:
        saved: the model.
        rows: the rows.
        sampling: options.
        seed: seed of the noise.
        batch: rows at a time.
        complete: whether no missing value is drawn.
        numbers: number of each row; by default 0, 1, 2 and so on.

    Raises:
        ValueError: as ``Sampling.plan``.
    """
    length = rows.x.shape[1]
    denoiser = saved.denoiser
    if complete:
        denoiser = without_missing(denoiser, saved.layout.by_position)
    sampler = make_sampler(saved, sampling.sampler)
    device = saved.process.device
    parts = []
    for index, x, given in _batches(rows, batch, numbers, device):
        plan = sampling.plan(
            saved,
            denoiser,
            (len(index), length),
            sampler,
            sampling.order(saved, length),
            sampling.controls(saved),
            prompt=dd.Given(x, given) if bool(given.any()) else None,
            generator=dd.KeyedGenerator(seed, NOISE, index),
        )
        parts.append(plan.run().cpu())
    return torch.cat(parts)


def _batches(
    rows: Rows, size: int, numbers: Sequence[int] | None, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    every = torch.arange(len(rows.x)) if numbers is None else torch.tensor(numbers)
    for first in range(0, len(rows.x), size):
        part = slice(first, first + size)
        yield every[part].to(device), rows.x[part].to(device), rows.given[part].to(device)


def without_missing(denoiser: Denoiser, fields: Sequence[Field]) -> Callable[..., Any]:
    """Return the denoiser without probability of missing values."""
    width = max(len(one.symbols) for one in fields)
    absent = torch.zeros(len(fields), width, dtype=torch.bool)
    for place, field in enumerate(fields):
        if field.may_miss:
            absent[place, len(field.symbols) - 1] = True

    def complete(z: Tensor, t: Tensor, **options: Any) -> Tensor:
        return denoiser(z, t, **options).masked_fill(absent.to(z.device), -torch.inf)

    return complete


def texts_of(
    layout: Layout,
    drawn: Int[Tensor, "N L"],
    rows: Rows | None = None,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
) -> list[list[str | None]]:
    """Return the values of rows as texts, None for missing ones; given values as they were given.

    Args:
        layout: layout of the data.
        drawn: tokens of the rows.
        rows: what was given.
        seed: seed of numbers within their cells.
        numbers: as in ``draw``.
    """
    index = torch.arange(len(drawn)) if numbers is None else torch.tensor(numbers)
    chance: Float[np.ndarray, "N L"] = (
        dd.KeyedGenerator(seed, WITHIN, index).rand(drawn.shape).numpy()
    )
    ids = drawn.numpy()
    columns = [
        field.values(ids[:, place], chance[:, place])
        for place, field in enumerate(layout.by_position)
    ]
    result = [list(row) for row in zip(*columns, strict=True)]
    if rows is None:
        return result
    for row, known, texts in zip(result, rows.given.tolist(), rows.texts, strict=True):
        for place in range(len(row)):
            row[place] = texts[place] if known[place] else row[place]
    return result


def write_rows(path: Path, layout: Layout, texts: Texts) -> None:
    """Write rows as .csv, or as .parquet with numbers where the fields are numbers."""
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(layout.headings)
            writer.writerows([["" if text is None else text for text in row] for row in texts])
        return
    frame_of(layout, texts).to_parquet(path, index=False)


def frame_of(layout: Layout, texts: Texts) -> Any:
    """Return rows as a ``pandas.DataFrame``: integers, numbers, and texts."""
    import pandas as pd

    frame = pd.DataFrame(texts, columns=layout.headings, dtype=object)
    for name, field in zip(frame.columns, layout.by_position, strict=True):
        if field.cells is not None:
            kind = "Int64" if field.cells.decimals == 0 else "float64"
            frame[name] = pd.to_numeric(frame[name]).astype(kind)
    return frame
