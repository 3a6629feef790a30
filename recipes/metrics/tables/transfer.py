"""A classifier that is trained on one table and tested on another."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from recipes.metrics.tables.columns import Codes, Columns

LARGEST = 255
"""Number of categories up to which scikit-learn splits on sets of them."""


@dataclass(frozen=True)
class Transfer:
    """Quality of a classifier on test rows."""

    accuracy: float
    bits: float
    """Mean of -log2 of the probability of the right class."""


def transfer(
    rows: Codes, test: Codes, columns: Columns, target: str, iterations: int = 50, seed: int = 0
) -> Transfer:
    """Train histogram gradient boosting of one column from the others on ``rows``, and test it.

    If ``rows`` are samples, and ``test`` are data, this measures whether what matters for the
    target is in the samples; the reference is a classifier that is trained on as many data.
    Its probabilities p are taken as (N p + 1) / (N + K) for K classes and N rows, so that a class
    that ``rows`` lacks costs finitely many bits.

    Args:
        rows: table to train on.
        test: table to test on.
        columns: columns of both.
        target: name of the column to predict; each of its codes is a class.
        iterations: number of boosting iterations.
        seed: seed of the classifier.

    Raises:
        ValueError: a target that is not a column, or the only one; codes that ``columns`` does not
            have.
    """
    columns.check("rows", rows)
    columns.check("test", test)
    if target not in columns.names or len(columns.names) < 2:
        raise ValueError(
            f"target is {target!r}, must be one of at least two columns: {[*columns.names]}"
        )
    place = [*columns.names].index(target)
    probabilities = _predict(rows, test, columns, place, iterations, seed)
    right = test[:, place]
    size = columns.sizes[place]
    smoothed = (len(rows) * probabilities + 1) / (len(rows) + size)
    costs = -np.log2(smoothed[np.arange(len(test)), right])
    return Transfer(float((smoothed.argmax(1) == right).mean()), float(costs.mean()))


def _predict(
    rows: Codes, test: Codes, columns: Columns, place: int, iterations: int, seed: int
) -> Float64[np.ndarray, "N K"]:
    from sklearn.ensemble import HistGradientBoostingClassifier  # takes a second

    probabilities = np.zeros((len(test), columns.sizes[place]))
    classes = np.unique(rows[:, place])
    if len(classes) == 1:
        probabilities[:, classes] = 1.0
        return probabilities
    pairs = zip(columns.sizes, columns.ordered, strict=True)
    unordered = [not ordered and size <= LARGEST for size, ordered in pairs]
    classifier = HistGradientBoostingClassifier(
        max_iter=iterations,
        categorical_features=np.delete(unordered, place),
        early_stopping=False,
        random_state=seed,
    )
    classifier.fit(np.delete(rows, place, 1), rows[:, place])
    probabilities[:, classifier.classes_] = classifier.predict_proba(np.delete(test, place, 1))
    return probabilities
