"""Preset that makes the process from a vocabulary: it determines which tokens are punctuation."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ddlib.schedules import Schedule
from ddlib.utils.validation import require
from ddlib_ragged.hierarchy import Bands
from ddlib_ragged.process import Ragged


def punctuated(
    vocabulary: Mapping[str, int],
    counts: Sequence[float] | Tensor,
    schedule: Schedule,
    bands: int = 8,
    xi: float = 1.0,
    marks: str = ".,;:!?",
    speed: float = 1.0,
) -> Ragged:
    """Return a ``Ragged`` process with bands of words and, as punctuation, the tokens that consist
    of ``marks``.

    A recipe fills in the first two arguments: ``process: {kind: punctuated, schedule: log_odds}``.

    Args:
        vocabulary: token -> id.
        counts: number of occurrences of each token, (V,).
        schedule: schedule of the process.
        bands: number of bands of words.
        xi: probability that a word jumps to its band.
        marks: characters that make a token punctuation.
        speed: speed of punctuation.

    Raises:
        ValueError: no token consists of ``marks``, or an argument is invalid for ``Bands`` or
            ``Ragged``.
    """
    found = sorted(
        index for token, index in vocabulary.items() if token and not set(token) - set(marks)
    )
    require(bool(found), f"marks is {marks!r}, no token of the vocabulary consists of these")
    words = torch.as_tensor(
        [count for index, count in enumerate(counts) if index not in set(found)]
    )
    return Ragged(Bands(words, bands, xi), found, schedule, speed)
