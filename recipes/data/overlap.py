"""Documents and files that training and validation share: refused where they are more than
repetition explains.
"""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from jaxtyping import UInt64

from recipes.data.source import matches

LARGEST = 0.1
"""Largest accepted share of validation documents that are in train, beyond the share that repeats
within train.
"""

LISTED = 5
"""Maximum number of files that a message lists."""


def check_files(train: str, validation: str) -> None:
    """Refuse a file that both paths, folders or patterns have, under any name: a link or another
    spelling of its path.

    Raises:
        ValueError: they have one, with the number and names of those files.
    """

    def key(file: Path) -> tuple[int, int]:
        status = file.stat()
        return status.st_dev, status.st_ino

    files = matches(validation)
    theirs = set(map(key, matches(train)))
    if shared := [str(file) for file in files if key(file) in theirs]:
        names = ", ".join(shared[:LISTED]) + ", ..." * (len(shared) > LISTED)
        raise ValueError(
            f"validation={validation!r}: {len(shared)} of its {len(files)} files are files of "
            f"{train!r} too, must be others: {names}"
        )


def count_shared(
    train: Sequence[np.ndarray], validation: Sequence[np.ndarray], limited: bool
) -> dict[str, int]:
    """Return the number of validation documents that are in train, and that of documents that
    repeat within train.

    Sequences of few symbols, or short lines, repeat by chance: about as often between the splits as
    within train.

    Args:
        train: ids of each document; every one is read, so that damage is found before training.
        validation: ids of each document.
        limited: whether to raise, as for validation that is named apart from the training
            documents.

    Raises:
        ValueError: the share of the first in validation exceeds that of the second in train by more
            than a tenth.
    """
    known, counts = np.unique(_digests(train), return_counts=True)
    common = np.isin(_digests(validation), known)
    repeated = int(counts[counts > 1].sum())
    overlap = {"documents": int(common.sum()), "repeated": repeated}
    if limited and common.mean() > repeated / len(train) + LARGEST:
        raise ValueError(
            f"validation: {overlap['documents']:,} of {len(validation):,} documents are in train "
            "too, "
            f"the first is number {int(common.argmax())}; must be other documents. At most "
            f"{LARGEST:.0%} are accepted beyond the share that repeats within train, "
            f"{repeated:,} of {len(train):,}"
        )
    return overlap


def _digests(documents: Sequence[np.ndarray]) -> UInt64[np.ndarray, " N"]:
    """Return a hash of the ids of each document."""
    hashes = (blake2b(one.tobytes(), digest_size=8).digest() for one in documents)
    return np.frombuffer(b"".join(hashes), dtype=np.uint64)
