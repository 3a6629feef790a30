"""Packing of several short documents into one row, computed once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class PackedDocuments(Sequence[np.ndarray]):
    """Rows of packed documents: row i holds ``order[begins[i]:begins[i + 1]]``, in this order."""

    order: Int[np.ndarray, " N"]
    begins: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.begins) - 1

    def __getitem__(self, index: int) -> Int[np.ndarray, " m"]:
        return self.order[self.begins[index] : self.begins[index + 1]]


def pack(lengths: Int[np.ndarray, " N"], length: int, seed: int) -> PackedDocuments:
    """Pack documents into rows of ``length`` tokens, each whole in one row.

    Longer ones fill a row alone.

    Best-fit decreasing: the longest first, each into the fullest row that fits it. As lengths are
    small integers, all documents of a length are placed at once. The order of several documents of
    one length is drawn with ``seed``.

    Args:
        lengths: tokens of each document.
        length: tokens of a row.
        seed: seed of the draw.
    """
    sizes = np.minimum(lengths, length)
    ties = np.random.Philox(seed).random_raw(len(sizes))
    longest_first = np.lexsort((ties, -sizes))
    counts = np.bincount(sizes, minlength=length + 1)
    row = np.empty(len(sizes), dtype=np.int64)
    num_rows = 0
    placed = 0
    with_space: list[Int[np.ndarray, " m"]] = [
        np.empty(0, dtype=np.int64) for _ in range(length + 1)
    ]
    for size in range(length, 0, -1):
        group = longest_first[placed : placed + counts[size]]
        placed += len(group)
        while len(group):
            space = next((r for r in range(size, length + 1) if len(with_space[r])), None)
            if space is None:
                space = length
                new = -(-len(group) // (length // size))
                with_space[space] = np.arange(num_rows, num_rows + new)
                num_rows += new
            chosen = with_space[space][: len(group)]
            with_space[space] = with_space[space][len(group) :]
            row[group[: len(chosen)]] = chosen
            group = group[len(chosen) :]
            with_space[space - size] = np.concatenate([with_space[space - size], chosen])
    row_of = row[longest_first]
    order = longest_first[np.argsort(row_of, kind="stable")]
    begins = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=num_rows))])
    return PackedDocuments(order, begins)
