"""Bound of each field of sequences with several alphabets, beside the frequencies of its tokens."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from recipes.data import Prepared
from recipes.engine.parallel import World
from recipes.engine.validation import of_tokens
from recipes.metrics import Alphabets, Terms, by_field


def measure_fields(
    replicates: Sequence[Terms],
    data: Prepared,
    length: int,
    world: World,
    sequences: int,
    batch: int,
) -> dict[str, dict[str, Any]]:
    """Return the bound of each field in bits per value, by its name; empty for one alphabet.

    With ``unigram``, the bits of the frequencies of the field in training.

    Args:
        replicates: terms of the bound.
        data: the prepared data.
        length: tokens of a sequence.
        world: the distributed processes.
        sequences: number of sequences.
        batch: sequences at a time.
    """
    alphabets = Alphabets.of(data)
    measures = by_field(replicates, alphabets)
    if not measures:
        return {}
    terms = of_tokens(alphabets.costs(data), alphabets, data, length, world, sequences, batch)
    unigram = by_field([terms], alphabets)
    return {
        name: asdict(estimate) | {"unigram": unigram[name].value}
        for name, estimate in measures.items()
    }
