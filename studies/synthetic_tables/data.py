"""Tables of the study: files of packages, columns as codes, and the split of the rows."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from recipes.metrics.tables import Codes, Columns
from studies.corpus.packages import Package

CODES = 32
"""Largest number of codes of an ordered column."""
HELD_OUT = 4000
SHARE = 0.28
SPLIT_SEED = 0


@dataclass(frozen=True)
class Table:
    """A table in a package.

    Args:
        package: the package.
        path: path of the CSV in the package's file.
        categories: columns without an order; those not named have one.
        target: column that a classifier predicts, by quarters of its codes if it is ordered.
        dropped: columns that are left out.
    """

    package: Package
    path: str
    categories: Sequence[str]
    target: str
    dropped: Sequence[str] = ()

    def read(self, folder: Path) -> pd.DataFrame:
        """Return the table; download the package into ``folder`` if it is missing."""
        with zipfile.ZipFile(self.package.fetch(folder)) as archive:
            frame = pd.read_csv(archive.open(self.path))
        return frame.drop(columns=[*self.dropped])


TABLES: Mapping[str, Table] = {
    "diamonds": Table(
        Package(
            "pip",
            "plotnine",
            "0.15.9",
            "plotnine-0.15.9-py3-none-any.whl",
            "36f4526235b3ddd9ea379dd677093ea2ee1b58ab98adec1bde891930283448cd",
        ),
        "plotnine/data/diamonds.csv",
        ("cut", "color", "clarity"),
        "cut",
    ),
    "bikes": Table(
        Package(
            "pip",
            "ISLP",
            "0.6.0",
            "islp-0.6.0-py3-none-any.whl",
            "ca772cecca1747a2f84ee799a5503ddddbdf0e98f90c235494790c1d036c694b",
        ),
        "ISLP/data/Bikeshare.csv",
        ("mnth", "holiday", "weekday", "workingday", "weathersit"),
        "bikers",
        ("day", "season"),
    ),
    "health": Table(
        Package(
            "pip",
            "statsmodels",
            "0.15.0",
            "statsmodels-0.15.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
            "b67886b66d9c7ca118526accedb5c6de7ffd74c015dc0492ea0b1690192b65da",
        ),
        "statsmodels/datasets/randhie/randhie.csv",
        ("idp", "physlm", "hlthg", "hlthf", "hlthp"),
        "mdvis",
    ),
}


class Coder:
    """Codes of a table's values, from its training rows.

    Args:
        training: training rows.
        categories: columns without an order.
    """

    def __init__(self, training: pd.DataFrame, categories: Sequence[str]) -> None:
        self.values: dict[str, np.ndarray] = {}
        """Values of the columns that keep theirs, in order."""
        self.edges: dict[str, np.ndarray] = {}
        """Lowest value of each code but the first."""
        for name in training:
            different = np.sort(training[name].unique())
            if name in categories or len(different) <= CODES:
                self.values[name] = different
            else:
                shares = np.arange(1, CODES) / CODES
                cuts = np.unique(np.quantile(training[name], shares, method="higher"))
                self.edges[name] = cuts[cuts > different[0]]
        self.names = [*training]
        self.discrete = [*self.values]
        sizes = [len(self.values.get(name, self.edges.get(name))) for name in self.names]
        self.columns = Columns(
            self.names,
            [size + (name in self.edges) for name, size in zip(self.names, sizes, strict=True)],
            [name not in categories for name in self.names],
        )

    def encode(self, frame: pd.DataFrame) -> Codes:
        """Return codes, the nearest one for a number that training lacks.

        Raises:
            ValueError: a category that training lacks.
        """
        return np.stack([self._column(name, frame[name].to_numpy()) for name in self.names], 1)

    def _column(self, name: str, values: np.ndarray) -> np.ndarray:
        if name in self.edges:
            return np.searchsorted(self.edges[name], values, side="right")
        known = self.values[name]
        if known.dtype.kind in "OUT":
            codes = pd.Index(known).get_indexer(pd.Index(values))
            if (codes < 0).any():
                raise ValueError(f"column {name!r} has {values[codes < 0][0]!r}, training has not")
            return codes
        numbers = np.asarray(values, dtype=np.float64)
        middles = (known[1:] + known[:-1]) / 2
        return np.searchsorted(middles, numbers)


@dataclass(frozen=True)
class Split:
    """Training and held-out rows of a table, as values and as codes."""

    training: pd.DataFrame
    coder: Coder
    codes: Codes
    """Training rows."""
    held_out: Codes

    @property
    def columns(self) -> Columns:
        return self.coder.columns


def split(table: Table, frame: pd.DataFrame, held_out: int = HELD_OUT) -> Split:
    """Shuffle the rows, and split off the held-out ones."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(frame))
    number = min(held_out, int(SHARE * len(frame)))
    training = frame.iloc[order[number:]].reset_index(drop=True)
    rest = frame.iloc[order[:number]]
    for name in table.categories:  # one row of bikes has a category that no other has
        rest = rest[rest[name].isin(training[name])]
    coder = Coder(training, table.categories)
    return Split(training, coder, coder.encode(training), coder.encode(rest))
