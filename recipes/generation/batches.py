"""Batches of items that are alike."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby
from typing import TypeVar

T = TypeVar("T")


def batches(items: Sequence[T], alike: Callable[[T], Hashable], size: int) -> Iterator[list[int]]:
    """Yield the indices of items that are alike, at most ``size`` together."""
    order = sorted(range(len(items)), key=lambda number: alike(items[number]))
    for _, members in groupby(order, key=lambda number: alike(items[number])):
        group = list(members)
        yield from (group[first : first + size] for first in range(0, len(group), size))
