"""Metrics of samples of a table, a plug-in of ``ddlib.metrics``: the default of the source
``table``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from recipes.metrics.tables.closest import closest
from recipes.metrics.tables.columns import Codes, Columns
from recipes.metrics.tables.halves import floor, halved
from recipes.metrics.tables.statistics import measure
from recipes.metrics.tables.transfer import transfer

if TYPE_CHECKING:
    from recipes.data import Prepared

SEED = 0
LEAST = 4


class Table:
    """Marginals, associations, a classifier that is trained on samples, and the closest record.

    Args:
        target: column that the classifier predicts; None for the mean over all columns, each
            predicted from the others.
        halvings: number of random halves of samples and held-out rows.
        classifiers: the same for the classifier.
        most: largest number of samples, and of held-out rows, whose closest record is searched.
    """

    def __init__(
        self,
        target: str | None = None,
        halvings: int = 20,
        classifiers: int = 2,
        most: int = 2000,
    ) -> None:
        self.target = target
        self.halvings = halvings
        self.classifiers = classifiers
        self.most = most

    def check(self, data: Prepared) -> None:
        """Raise ValueError unless every position is a column, at least two, one of them the target,
        and there are at least four held-out rows.
        """
        layout = data.layout
        if layout is None or not layout.is_row:
            raise ValueError(
                "metrics: the data must be a table, with another field at each position"
            )
        if len(layout.positions) < 2 or len(data.validation) < LEAST:
            raise ValueError(
                f"metrics: the table has {len(layout.positions)} columns and "
                f"{len(data.validation)} held-out rows, must have at least 2 and {LEAST}"
            )
        if self.target is not None and self.target not in layout.positions:
            raise ValueError(
                f"metrics: target is {self.target!r}, must be one of the columns "
                f"{', '.join(layout.positions)}"
            )

    def measure(
        self,
        samples: Sequence[Int[np.ndarray, " L"]],
        data: Prepared,
        labels: Int[np.ndarray, " N"] | None = None,
    ) -> dict[str, float]:
        """Return each measure of samples, and as ``NAME_of_data`` the same of held-out rows.

        Half of the samples are measured against as many held-out rows, and these against others.

        Returns:
            those of ``recipes.metrics.tables.measure``; ``accuracy`` and ``classifier_bits`` of
            ``transfer``; ``closest``, the mean distance to the closest record of training, and
            ``copies``, the share of rows that are in training; ``NAME_error`` of all but the last.

        Raises:
            ValueError: fewer than four samples.
        """
        if len(samples) < LEAST:
            raise ValueError(f"samples: {len(samples)}, must be at least {LEAST} for a table")
        columns = columns_of(data)
        generator = np.random.default_rng(SEED)
        held_out = np.stack(list(data.validation))
        held_out = held_out[generator.permutation(len(held_out))[: 2 * (len(samples) // 2)]]
        training = np.stack(list(data.train))
        rows = np.stack(samples)
        targets = columns.names if self.target is None else [self.target]

        def distance(one: Codes, reference: Codes) -> dict[str, float]:
            return measure(one, reference, columns)

        def classify(one: Codes, reference: Codes) -> dict[str, float]:
            results = [transfer(one, reference, columns, target) for target in targets]
            return {
                "accuracy": float(np.mean([each.accuracy for each in results])),
                "classifier_bits": float(np.mean([each.bits for each in results])),
            }

        of_samples = halved(distance, rows, held_out, self.halvings)
        of_samples |= halved(classify, rows, held_out, self.classifiers)
        of_data = floor(distance, held_out, self.halvings)
        of_data |= floor(classify, held_out, self.classifiers)
        result = {}
        for name, one in of_samples.items():
            result[name] = one.value
            result[f"{name}_error"] = one.standard_error
            result[f"{name}_of_data"] = of_data[name].value
        for suffix, part in (("", rows), ("_of_data", held_out)):
            distances = closest(part[: self.most], training, columns)
            result[f"closest{suffix}"] = float(distances.mean())
            result[f"copies{suffix}"] = float((distances == 0).mean())
            if not suffix:
                error = distances.std() / np.sqrt(len(distances))
                result["closest_error"] = float(error)
        return result


def columns_of(data: Prepared) -> Columns:
    """Return the columns of a table, in the order of its positions."""
    fields = data.layout.by_position
    return Columns(
        [field.name for field in fields],
        [len(field.symbols) for field in fields],
        [field.cells is not None for field in fields],
        [field.may_miss for field in fields],
    )
