"""Measures of random halves: samples against held-out rows, and held-out rows against each other.

A distance between two finite tables is above 0 even if they have the same distribution. Both
numbers here are of equally many rows, so the second is the value that perfect samples have.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from ddlib import Measure
from recipes.metrics.tables.columns import Codes

Distance: TypeAlias = Callable[[Codes, Codes], Mapping[str, float]]
"""Named numbers of rows and a reference."""


def halved(
    distance: Distance, samples: Codes, held_out: Codes, halvings: int = 20, seed: int = 0
) -> dict[str, Measure]:
    """Measure random halves of the samples against random halves of the held-out rows.

    The error is the deviation over halvings, which for a mean over rows is the error of all rows
    (delete-half jackknife). It does not contain the randomness of training.

    Args:
        distance: measured for each pair of halves.
        samples: as many rows as half of ``held_out``, or more.
        held_out: rows that no generator was trained on; an odd one is left out.
        halvings: number of pairs, at least 2.
        seed: seed of the halves; those of ``held_out`` are the same in ``floor``.

    Raises:
        ValueError: fewer than two halvings, or too few rows.
    """
    number = _half(held_out, halvings)
    if len(samples) < number:
        raise ValueError(f"samples has {len(samples)} rows, must have at least {number}")
    generator = np.random.default_rng([seed, 1])
    values = [
        distance(samples[generator.permutation(len(samples))[:number]], reference)
        for reference, _ in _halves(held_out, halvings, seed)
    ]
    return _summary(values)


def floor(
    distance: Distance, held_out: Codes, halvings: int = 20, seed: int = 0
) -> dict[str, Measure]:
    """Measure random halves of the held-out rows against the other halves: the best value that
    samples have in ``halved``, apart from luck.
    """
    _half(held_out, halvings)
    values = [distance(rest, reference) for reference, rest in _halves(held_out, halvings, seed)]
    return _summary(values)


def _half(held_out: Codes, halvings: int) -> int:
    if halvings < 2:
        raise ValueError(f"halvings is {halvings}, must be at least 2")
    if len(held_out) < 2:
        raise ValueError(f"held_out has {len(held_out)} rows, must have at least 2")
    return len(held_out) // 2


def _halves(held_out: Codes, halvings: int, seed: int) -> Iterator[tuple[Codes, Codes]]:
    generator = np.random.default_rng([seed, 0])
    number = len(held_out) // 2
    for _ in range(halvings):
        order = generator.permutation(len(held_out))
        yield held_out[order[:number]], held_out[order[number : 2 * number]]


def _summary(values: list[Mapping[str, float]]) -> dict[str, Measure]:
    summary = {}
    for name in values[0]:
        numbers = np.array([each[name] for each in values])
        summary[name] = Measure(float(numbers.mean()), float(numbers.std(ddof=1)), "")
    return summary
