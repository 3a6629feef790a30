"""From a text to the process: which of its tokens are punctuation."""

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
    """Words in bands of frequency, and the tokens that consist of these marks beside them.

    A recipe fills the first two arguments in: ``process: {kind: punctuated, schedule: log_odds}``.

    Args:
        vocabulary: token -> id.
        counts: how often each token occurs, (V,).
        schedule: when.
        bands: of the words.
        xi: of the bands.
        marks: characters that make a token punctuation.
        speed: of punctuation.

    Raises:
        ValueError: no token consists of marks, or as ``Bands`` and ``Ragged``.
    """
    found = sorted(index for token, index in vocabulary.items() if token and not set(token) - set(marks))
    require(bool(found), f"marks is {marks!r}, no token of the vocabulary consists of these")
    words = torch.as_tensor([count for index, count in enumerate(counts) if index not in set(found)])
    return Ragged(Bands(words, bands, xi), found, schedule, speed)
