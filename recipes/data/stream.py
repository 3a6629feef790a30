"""Infinite stream of batches.

The example at each position of the global order depends only on seed and position.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from recipes.data.batch import Batch
from recipes.data.packing import pack
from recipes.data.prepared import Documents

before = logging.root.manager.disable
logging.disable(logging.WARNING)  # grain warns about a missing profiler of jax
import grain  # noqa: E402

logging.disable(before)

SMALL = 1024
"""Number of rows below which grain's shuffle, which searches 16 bits per position, is too slow: 30
ms for one row.
"""

END = 2**62
"""Length of the infinite order: grain rounds the number of batches up to a double, which must stay
an index.
"""


@dataclass(frozen=True)
class Row:
    """One row, its tokens that are not given, the number of real ones, where its pieces begin,
    their labels, and its global position.
    """

    tokens: Int[np.ndarray, " L"]
    free: Bool[np.ndarray, " L"]
    real: int
    begins: tuple[int, ...]
    labels: tuple[int, ...] = ()
    position: int = -1


def examples(
    documents: Documents,
    *,
    length: int,
    pad_id: int,
    batch_size: int,
    seed: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    packed: bool = False,
    threads: int = 4,
) -> Iterator[Batch]:
    """Yield batches of this rank from position ``start`` of the global order on, without end.

    The global order goes through all rows in an order drawn anew every epoch; a document longer
    than ``length`` gives a window drawn anew every epoch. Rank r of W reads the positions start +
    r, start + r + W, ...: the W ranks together read the same examples as one rank with W times the
    batch. To resume, ``start`` is the next position.

    Args:
        documents: token ids.
        length: tokens of a row.
        pad_id: id of padding.
        batch_size: rows of a batch.
        seed: seed of order and windows, and of packing.
        start: first position of the whole world.
        rank: rank of this process.
        world: number of processes.
        packed: rows of several documents, see ``pack``, instead of one document each.
        threads: number of read-ahead threads; 0 to read on demand only.

    Raises:
        ValueError: naming the argument, its value and the rule it breaks; fewer rows than ranks.
    """
    least = dict(length=(length, 1), batch_size=(batch_size, 1), world=(world, 1))
    least |= dict(
        pad_id=(pad_id, 0), seed=(seed, 0), start=(start, 0), rank=(rank, 0), threads=(threads, 0)
    )
    for name, (value, lowest) in least.items():
        if value < lowest:
            raise ValueError(f"{name}={value}: must be at least {lowest}")
    if rank >= world:
        raise ValueError(f"rank={rank}: must be below world={world}")
    rows = pack(documents.lengths, length, seed) if packed else range(len(documents))
    if len(rows) < world:
        raise ValueError(f"world={world}: must be at most {len(rows)}, the number of rows")

    mine = slice(start + rank, END, world)
    data = _order(rows, _filling(documents, length, pad_id), seed)
    return _read(data, _pieces if packed else _examples, mine, batch_size, threads)


def _filling(
    documents: Documents, length: int, pad_id: int
) -> Callable[[Any, np.random.Generator], Row]:
    """Return the function from the members of a row to the row, with windows drawn from a random
    generator.
    """

    def fill(members: int | Int[np.ndarray, " m"], random: np.random.Generator) -> Row:
        tokens = np.full(length, pad_id, dtype=np.int64)
        free = np.ones(length, dtype=bool)
        begins = []
        end = 0
        for number in np.atleast_1d(members):
            document = documents[int(number)]
            part = window(len(document), length, random, documents.step)
            piece = slice(end, end + part.stop - part.start)
            begins.append(end)
            tokens[piece] = document[part]
            free[piece] = ~documents.given(int(number))[part]
            end = piece.stop
        labels = documents.labels[np.atleast_1d(members)].tolist() if len(documents.labels) else ()
        return Row(tokens, free, end, tuple(begins), tuple(labels))

    return fill


@dataclass(frozen=True)
class Shuffled(Sequence[Any]):
    """A few rows without end, in a new order every epoch, which is drawn at each access."""

    rows: Sequence[Any]
    seed: int

    def __len__(self) -> int:
        return END

    def __getitem__(self, position: int) -> Any:
        epoch, place = divmod(position, len(self.rows))
        draws = np.random.Philox(key=self.seed, counter=[0, 0, 0, epoch]).random_raw(len(self.rows))
        return self.rows[int(np.argsort(draws, kind="stable")[place])]


def lookup(
    documents: Documents, *, length: int, pad_id: int, seed: int
) -> Callable[[Sequence[int]], Batch]:
    """Return the function from positions of the global order of ``examples``, unpacked, to a batch
    of these examples.

    Args:
        documents: token ids.
        length: tokens of a row.
        pad_id: id of padding.
        seed: seed of order and windows.
    """
    data = _order(range(len(documents)), _filling(documents, length, pad_id), seed)
    return lambda positions: _examples([data[position] for position in positions])


def window(tokens: int, length: int, random: np.random.Generator, step: int = 1) -> slice:
    """Return the whole of a document, or a window of ``length`` tokens that begins at a uniformly
    drawn multiple of ``step``.
    """
    spare = tokens - length
    if spare <= 0:
        return slice(0, tokens)
    begin = step * int(random.integers(spare // step + 1))
    return slice(begin, begin + length)


def _examples(rows: Sequence[Row]) -> Batch:
    tokens, mask, free = _stack(rows)
    labels = torch.tensor([row.labels[0] for row in rows]) if rows[0].labels else None
    index = torch.tensor([row.position for row in rows])
    return Batch(tokens, mask, free, index, labels=labels)


def _pieces(rows: Sequence[Row]) -> Batch:
    tokens, mask, free = _stack(rows)
    length = tokens.shape[1]
    begins = []
    index = []
    labels: list[int] = []
    for number, row in enumerate(rows):
        filled = row.real < length
        for begin in (*row.begins, *([row.real] if filled else [])):
            begins.append(number * length + begin)
            index.append(row.position * length + begin)
        labels += [*row.labels, -1] if filled else row.labels
    classes = torch.tensor(labels) if rows[0].labels else None
    ends = torch.tensor([*begins, tokens.numel()])
    return Batch(tokens, mask, free, torch.tensor(index), ends, classes)


def _stack(
    rows: Sequence[Row],
) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L"], Bool[Tensor, "B L"]]:
    tokens, free = (
        torch.from_numpy(np.stack(arrays))
        for arrays in ([row.tokens for row in rows], [row.free for row in rows])
    )
    real = torch.tensor([row.real for row in rows])[:, None]
    return tokens, torch.arange(tokens.shape[1]) < real, free


def _order(rows: Sequence[Any], fill: Callable[[Any, np.random.Generator], Row], seed: int) -> Any:
    """Return the rows in their global order, without end: a stateless order, a random generator for
    each position.
    """
    order, windows = (int(part) for part in np.random.SeedSequence(seed).generate_state(2))
    if len(rows) < SMALL:
        data = grain.MapDataset.source(Shuffled(rows, order))
    else:
        data = grain.MapDataset.source(rows).shuffle(seed=order).repeat()
    data = data.random_map(fill, seed=windows)
    return data.map_with_index(lambda position, row: replace(row, position=position))


def _read(
    data: Any, collate: Callable[[Sequence[Row]], Batch], mine: slice, batch_size: int, threads: int
) -> Iterator[Batch]:
    """Yield batches of some positions, with read-ahead."""
    data = data.slice(mine).batch(batch_size, batch_fn=collate)
    stream = iter(
        data.to_iter_dataset(
            grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
        )
    )
    try:
        yield from stream
    finally:
        stream.close()
