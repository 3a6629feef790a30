"""Numbers as tokens: single values, and cells that each hold an interval of values."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int

NOWHERE = -1
"""Token of a number that is in no cell."""
STEPS = 8
"""Steps of probability between the quantiles of a cell."""
TAIL_STEPS = 128
"""The same in the first and the last cell of values that follow each other."""


@dataclass(frozen=True)
class Cells:
    """Disjoint cells of numbers in increasing order; token k is a number of cell k.

    A number is drawn from its cell by the quantiles of the cell, linear between them: a cell of two
    quantiles is uniform, one of a single quantile is that value.

    Raises:
        ValueError: no cell, an empty one, numbers that do not increase or are not finite.
    """

    quantiles: tuple[tuple[float, ...], ...]
    """Quantiles of the values of each cell, at equal steps of probability, smallest value first."""
    decimals: int | None = None
    """Decimals that numbers are rounded to; 0 for integers, None for all."""

    def __post_init__(self) -> None:
        if not self.quantiles or not all(self.quantiles):
            raise ValueError(
                f"quantiles is {self.quantiles!r}, must have at least one in each cell"
            )
        flat = [value for cell in self.quantiles for value in cell]
        inside = all(low <= high for cell in self.quantiles for low, high in pairwise(cell))
        apart = all(one[-1] < other[0] for one, other in pairwise(self.quantiles))
        if not (inside and apart and bool(np.isfinite(flat).all())):
            raise ValueError("quantiles must be finite, and increase within and between cells")

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Return the cells of plain values, as ``dataclasses.asdict`` writes them."""
        return cls(tuple(map(tuple, values["quantiles"])), values["decimals"])

    @classmethod
    def fit(
        cls,
        values: Float[np.ndarray, " N"],
        bins: int | None,
        decimals: int | None = None,
    ) -> Self:
        """Return cells of about equal numbers of values.

        A value with the share of a bin or more is a cell of its own, and so is every value if there
        are at most ``bins``. Equal values are in one cell.

        Args:
            values: finite numbers.
            bins: number of cells, about; None for a cell of each value.
            decimals: see the class.
        """
        ordered = np.sort(values)
        distinct, counts = np.unique(ordered, return_counts=True)
        if bins is None or len(distinct) <= bins:
            return cls(tuple((value,) for value in distinct.tolist()), decimals)
        alone = counts * bins >= len(ordered)
        cells = [(value,) for value in distinct[alone].tolist()]
        rest = ordered[~np.repeat(alone, counts)]
        # cells end at values that stand alone
        run_of_value = np.searchsorted(distinct[alone], rest)
        for run in np.unique(run_of_value):
            part = rest[run_of_value == run]
            count = max(round(bins * len(part) / len(ordered)), 1)
            edges = np.quantile(part, np.linspace(0, 1, count + 1)[1:], method="inverted_cdf")
            number = np.searchsorted(np.unique(edges), part)
            for cell in range(number[-1] + 1):
                inside = part[number == cell]
                # a tail is long: few of its values are near its end
                steps = TAIL_STEPS if cell in (0, number[-1]) else STEPS
                grid = np.linspace(0, 1, min(steps, len(inside) - 1) + 1)
                knots = np.quantile(inside, grid).tolist() if inside[0] < inside[-1] else inside[:1]
                cells.append(tuple(map(float, knots)))
        return cls(tuple(sorted(cells)), decimals)

    def __len__(self) -> int:
        return len(self.quantiles)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each token: its value, or its smallest and its largest one."""
        return tuple(
            self.text(cell[0])
            if len(cell) == 1
            else f"{self.text(cell[0])} to {self.text(cell[-1])}"
            for cell in self.quantiles
        )

    def text(self, value: float) -> str:
        """Write a number, with its decimals."""
        if self.decimals is None:
            return repr(float(value))
        return f"{value:.{self.decimals}f}"

    def tokens(self, values: Float[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
        """Return the token of each number, ``NOWHERE`` for one in no cell.

        A number between two cells is in the upper one, in the lower one if the upper is a single
        value, and in none between two single values.
        """
        lows, highs = (np.array([cell[end] for cell in self.quantiles]) for end in (0, -1))
        wide = np.append(lows < highs, False)
        upper = np.searchsorted(highs, values)
        inside = (upper < len(self)) & (values >= np.append(lows, np.inf)[upper])
        between = ~inside & (upper > 0) & (upper < len(self))
        below = np.maximum(upper - 1, 0)
        fill = np.where(wide[upper], upper, np.where(wide[below], below, NOWHERE))
        return np.where(inside, upper, np.where(between, fill, NOWHERE))

    def draw(
        self, tokens: Int[np.ndarray, " N"], chance: Float[np.ndarray, " N"]
    ) -> Float[np.ndarray, " N"]:
        """Return a number of each token's cell.

        Args:
            tokens: the tokens.
            chance: uniform draws in [0, 1), which determine the number.
        """
        result = np.empty(len(tokens))
        for token in np.unique(tokens):
            cell = np.array(self.quantiles[token])
            mine = tokens == token
            knots = cell.copy()
            if self.decimals is not None and len(cell) > 1:
                # the smallest and the largest value are rounded to from both sides, as all others
                knots[[0, -1]] += np.array([-0.5, 0.5]) * 10.0**-self.decimals
            drawn = np.interp(chance[mine], np.linspace(0, 1, len(cell)), knots)
            rounded = drawn if self.decimals is None else np.round(drawn, self.decimals)
            # a value of the cell may have more decimals than are written
            result[mine] = rounded.clip(cell[0], cell[-1])
        return result
