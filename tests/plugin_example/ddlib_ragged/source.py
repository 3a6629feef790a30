"""Data source of sequences that are not text: random walks on a circle."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Walks:
    """Random walks of equal length on the places of a circle; the label of a walk is its direction.

    Args:
        count: number of walks.
        length: steps of a walk.
        places: number of places on the circle, which are the symbols.
        seed: seed of the draw.
    """

    count: int = 100
    length: int = 16
    places: int = 12
    seed: int = 0

    def load(self) -> Any:
        from recipes.data import (
            Sequences,
        )  # imported here, since the other modules of the package need ddlib only

        draws = np.random.default_rng(self.seed)
        labels = draws.integers(0, 2, self.count)
        steps = draws.integers(0, 2, (self.count, self.length)) * (2 * labels - 1)[:, None]
        start = draws.integers(0, self.places, (self.count, 1))
        return Sequences(
            ids=(start + steps.cumsum(1)) % self.places,
            symbols=tuple(map(str, range(self.places))),
            labels=labels,
            classes=("down", "up"),
            separator=" ",
        )

    def identity(self) -> dict[str, str]:
        return {}  # empty: the data depends on the arguments only
