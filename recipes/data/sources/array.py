"""Ids in arrays: .npy, .npz, or a column of a .parquet file or of a data set of the hub."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from recipes.data.sequences import Ragged, Sequences, check_ints, check_range, number_symbols
from recipes.data.sources.files import (
    Table,
    check_split,
    chosen_labels,
    identity,
    matching,
    on_hub,
    suffix,
)

SUFFIXES = (".npy", ".npz", ".parquet")


@dataclass(frozen=True)
class ArrayFile:
    """Sequences of one file: their shape, () for sequences of different lengths, and further
    columns.
    """

    ids: Ragged
    shape: tuple[int, ...]
    columns: Callable[[str], Sequence[Any] | None]


@dataclass(frozen=True)
class Array:
    """Ids in arrays (N, ...) of ints, or in a column of ints or lists of ints.

    Args:
        files: .npy, .npz or .parquet: a file, a folder or a quoted pattern; or a data set of the
            hub.
        vocab: number of symbols; by default the largest id plus one.
        column: array of an .npz, or column of a table; by default the only one besides the labels.
        shape: shape of one sequence, whose ids are in one row; by default that of the arrays.
        labels: another array or column, or a file with one label on each line.
        split: split of a data set of the hub, or a slice of one; files are all "train".

    Raises:
        FileNotFoundError, TypeError, ValueError: on loading, with file, row and value: no such file
            or column; floats; negative ids, ids that are not below ``vocab``; rows that do not fit
            the shape; missing labels.
    """

    files: str
    vocab: int | None = None
    column: str | None = None
    shape: list[int] | None = None
    labels: str | None = None
    split: str = "train"

    def load(self) -> Sequences:
        parts = {name: self._reshape(name, part) for name, part in self._parts().items()}
        shapes = {part.shape for part in parts.values()}
        if len(shapes) > 1:
            raise ValueError(
                f"files={self.files!r}: arrays of several shapes, {', '.join(map(str, shapes))}"
            )
        vocab = self.vocab
        if vocab is None:
            vocab = 1 + max(
                (int(part.ids.values.max()) for part in parts.values() if len(part.ids.values)),
                default=0,
            )
        for name, part in parts.items():
            check_range(part.ids, vocab, name)
        lengths = np.concatenate([part.ids.lengths for part in parts.values()])
        kind = np.result_type(*(part.ids.values for part in parts.values()))
        kind = np.dtype(np.int64) if kind.kind == "f" else kind  # as of uint64 and int64
        values = np.concatenate(
            [part.ids.values.astype(kind, copy=False) for part in parts.values()]
        )
        ids = Ragged(values, np.concatenate([[0], lengths.cumsum()]))

        def columns(name: str) -> Sequence[Any] | None:
            by_part = [part.columns(name) for part in parts.values()]
            return (
                None
                if any(one is None for one in by_part)
                else [x for one in by_part for x in np.asarray(one).tolist()]
            )

        labels, classes = chosen_labels(self.labels, columns, len(ids))
        shape = shapes.pop()
        return Sequences(
            ids=ids,
            symbols=number_symbols(vocab),
            shape=shape if len(shape) > 1 else (),
            labels=labels,
            classes=classes,
            separator=" ",
            observed=self.vocab is None,
        )

    def identity(self) -> dict[str, str]:
        if on_hub(self.files):
            return Table(self.files, self.split).identity()
        return identity(matching(self.files, SUFFIXES), self.labels)

    def _parts(self) -> dict[str, ArrayFile]:
        """Return the sequences of each file, by its name."""
        if on_hub(self.files):
            import pyarrow as pa

            data = Table(self.files, self.split).read()
            return {self.files: self._of_table(self.files, pa.table(data.data.table))}
        check_split(self.split, self.files)
        return {str(file): self._read(file) for file in matching(self.files, SUFFIXES)}

    def _read(self, file: Path) -> ArrayFile:
        if suffix(file) == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:
                return self._of_table(str(file), pq.read_table(file))
            except pa.ArrowInvalid as error:
                raise ValueError(f"{file} cannot be read as parquet: {error}") from error
        try:
            content = np.load(file, allow_pickle=False)
        except ValueError as error:
            raise ValueError(
                f"{file} cannot be read: {error}. Rows of different lengths belong in a column of "
                "lists (.parquet)"
            ) from error
        if isinstance(content, np.ndarray):
            return _of_array(str(file), content, lambda name: None)
        name = self._name(str(file), content.files)
        return _of_array(
            f"{file}: {name}",
            content[name],
            lambda key: content[key] if key in content.files else None,
        )

    def _of_table(self, place: str, table: Any) -> ArrayFile:
        name = self._name(place, table.column_names)
        ids, shape = _of_column(f"{place}: column {name}", table.column(name).combine_chunks())

        @cache
        def columns(key: str) -> Sequence[Any] | None:
            return table.column(key).to_pylist() if key in table.column_names else None

        return ArrayFile(ids, shape, columns)

    def _name(self, place: str, names: Sequence[str]) -> str:
        """Return the name of the array or column with the ids."""
        if self.column is not None:
            if self.column not in names:
                raise ValueError(f"column={self.column!r}: {place} has {', '.join(names)}")
            return self.column
        others = [name for name in names if name != self.labels]
        if len(others) != 1:
            raise ValueError(
                f"column: {place} has {', '.join(names) or 'nothing'}, choose one of them"
            )
        return others[0]

    def _reshape(self, place: str, part: ArrayFile) -> ArrayFile:
        """Return the part in the given shape, after checking that every row has it."""
        if self.shape is None:
            return part
        size = int(np.prod(self.shape))
        lengths = part.ids.lengths
        if len(odd := np.flatnonzero(lengths != size)):
            raise ValueError(
                f"shape={self.shape}: row {odd[0]} of {place} has {lengths[odd[0]]} ids, every row "
                f"must have {size}"
            )
        return ArrayFile(part.ids, tuple(self.shape), part.columns)


def _of_array(
    place: str, array: np.ndarray, columns: Callable[[str], Sequence[Any] | None]
) -> ArrayFile:
    if array.ndim < 2:
        raise ValueError(
            f"{place}: has shape {array.shape}, must have a row for each sequence, (N, ...)"
        )
    check_ints(array, place)
    if not array.size:
        raise ValueError(f"{place}: has shape {array.shape}, must hold an id")
    count = len(array)
    shape = array.shape[1:]
    offsets = np.arange(count + 1) * int(np.prod(shape))
    return ArrayFile(Ragged(np.ascontiguousarray(array).reshape(-1), offsets), shape, columns)


def _of_column(place: str, column: Any) -> tuple[Ragged, tuple[int, ...]]:
    """Return the ids of a column of ints, or of lists of ints nested to any depth, and their shape
    if they have one.
    """
    import pyarrow as pa
    import pyarrow.compute as compute

    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"{place}: row {row} is missing")
    offsets: Int[np.ndarray, " n"] = np.arange(len(column) + 1)
    shape: list[int] = []
    depth = 0
    while (
        pa.types.is_list(column.type)
        or pa.types.is_large_list(column.type)
        or pa.types.is_fixed_size_list(column.type)
    ):
        lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
        alike = len(set(lengths.tolist())) <= 1
        if depth and not alike:
            raise ValueError(
                f"{place}: inner lists have {lengths.min()} to {lengths.max()} values, must be "
                "alike"
            )
        offsets = np.concatenate([[0], lengths.cumsum()])[offsets]
        shape.append(int(lengths[0]) if alike and len(lengths) else 0)
        column = compute.list_flatten(column)
        depth = depth + 1
        if column.null_count:
            at = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            row = int(np.searchsorted(offsets, at, side="right")) - 1
            raise ValueError(f"{place}: row {row} has a missing value")
    values = column.to_numpy(zero_copy_only=False)
    check_ints(values, place)
    return Ragged(values, offsets.astype(np.int64)), tuple(shape) if all(shape) else ()
