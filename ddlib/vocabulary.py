"""Checks that tokenizer, hierarchy and process share one vocabulary."""

import hashlib
import json
from collections.abc import Mapping

from ddlib.processes import ForwardProcess
from ddlib.utils.validation import require


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """Return a hash of the map from tokens to ids, as hex.

    Independent of the order of the mapping.
    """
    ordered = json.dumps(
        sorted((index, token) for token, index in vocabulary.items()), ensure_ascii=True
    )
    return hashlib.sha256(ordered.encode()).hexdigest()


def check_vocabulary(
    process: ForwardProcess, vocabulary: Mapping[str, int], **special_ids: int | None
) -> None:
    """Raise ValueError unless the tokens of ``process`` are the tokens of ``vocabulary``.

    Args:
        process: the forward process; if its hierarchy has a ``fingerprint``, the vocabulary must
            have the same.
        vocabulary: token -> id, e.g. ``tokenizer.get_vocab()``.
        special_ids: ids that must be tokens of the process, by name, e.g. ``pad=..., eos=...``.

    Raises:
        ValueError: other ids than 0..V-1, another size, another fingerprint, or a special id that
            is not a token.
    """
    size = process.vocab_size
    ids = set(vocabulary.values())
    require(
        len(vocabulary) == size,
        f"vocabulary has {len(vocabulary)} tokens, the process {size} tokens: they must be equal. "
        "A mask token, "
        "added tokens and padding to a round number are not tokens of the process",
    )
    require(
        ids == set(range(size)),
        f"vocabulary has ids {min(ids)}..{max(ids)} with gaps or repeats, must have exactly "
        f"0..{size - 1}",
    )
    for name, index in special_ids.items():
        require(
            index is None or 0 <= index < size,
            f"{name} id is {index}, must be a token in [0, {size}); state "
            f"{process.num_states - 1} is the last",
        )
    expected = None if process.hierarchy is None else process.hierarchy.fingerprint
    if expected is not None:
        actual = fingerprint(vocabulary)
        require(
            actual == expected,
            f"vocabulary has fingerprint {actual[:12]}, the hierarchy was made for "
            f"{expected[:12]}: another tokenizer",
        )
