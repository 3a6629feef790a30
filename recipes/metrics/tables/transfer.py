"""A classifier that is trained on one table and tested on another."""

from dataclasses import dataclass

import numpy as np

from recipes.metrics.tables.associations import merged
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
    rows: Codes,
    test: Codes,
    columns: Columns,
    target: str,
    groups: int = 4,
    iterations: int = 50,
    seed: int = 0,
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
        target: name of the column to predict.
        groups: largest number of classes of an ordered target, groups of neighbouring codes; each
            code of others is a class.
        iterations: number of boosting iterations.
        seed: seed of the classifier.

    Raises:
        ValueError: a target that is not a column, or the only one; codes that ``columns`` does not
            have.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # takes a second

    columns.check("rows", rows)
    columns.check("test", test)
    if target not in columns.names or len(columns.names) < 2:
        raise ValueError(
            f"target is {target!r}, must be one of at least two columns: {[*columns.names]}"
        )
    place = [*columns.names].index(target)
    alone = Columns(
        (target,), [columns.sizes[place]], [columns.ordered[place]], [columns.missing[place]]
    )
    classes, coarse = merged(rows[:, [place]], alone, groups)
    right = merged(test[:, [place]], alone, groups)[0][:, 0]
    size = coarse.sizes[0]
    pairs = zip(columns.sizes, columns.ordered, strict=True)
    unordered = [not ordered and number <= LARGEST for number, ordered in pairs]
    probabilities = np.zeros((len(test), size))
    known, which = np.unique(classes[:, 0], return_inverse=True)
    if len(known) == 1:
        probabilities[:, known] = 1.0
    else:
        classifier = HistGradientBoostingClassifier(
            max_iter=iterations,
            categorical_features=np.delete(unordered, place),
            early_stopping=False,
            random_state=seed,
        )
        classifier.fit(np.delete(rows, place, 1), which)
        probabilities[:, known] = classifier.predict_proba(np.delete(test, place, 1))
    smoothed = (len(rows) * probabilities + 1) / (len(rows) + size)
    costs = -np.log2(smoothed[np.arange(len(test)), right])
    return Transfer(float((smoothed.argmax(1) == right).mean()), float(costs.mean()))
