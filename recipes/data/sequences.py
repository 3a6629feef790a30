"""Sequences of symbols as ids: what a source returns, and the layout that a folder and a model keep
of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer

from recipes.data.layout import Layout
from recipes.data.names import named_tokenizer

LISTED = 5
"""Number of symbols that an error message lists."""


class Ragged(Sequence[np.ndarray]):
    """Sequences of different lengths in one array: sequence i is ``values[offsets[i]:offsets[i +
    1]]``.

    Args:
        values: the ids of all sequences.
        offsets: where each begins, and the total.
    """

    def __init__(self, values: Int[np.ndarray, " T"], offsets: Int[np.ndarray, " n"]) -> None:
        self.values = values
        self.offsets = offsets

    @classmethod
    def of(cls, sequences: Sequence[Any], place: str = "ids") -> "Ragged":
        """Concatenate sequences of ints.

        Raises:
            TypeError: a sequence is not of ints.
            ValueError: a sequence is not one row of numbers.
        """
        if isinstance(sequences, Ragged):
            return sequences
        rows = [np.asarray(one) for one in sequences]
        for number, row in enumerate(rows):
            if row.ndim != 1:
                raise ValueError(
                    f"{place}: row {number} has shape {row.shape}, must be one row of ids"
                )
            if row.size:
                check_ints(row, f"{place}: row {number}")
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        filled = [row for row in rows if row.size]
        values = np.concatenate(filled) if filled else np.empty(0, dtype=np.int64)
        return cls(values, np.concatenate([[0], lengths.cumsum()]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> "Ragged": ...
    def __getitem__(self, index: int | slice) -> "np.ndarray | Ragged":
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        number = range(len(self))[index]
        return self.values[self.offsets[number] : self.offsets[number + 1]]

    @property
    def lengths(self) -> Int[np.ndarray, " N"]:
        """Number of ids of each sequence."""
        return np.diff(self.offsets)

    def select(self, rows: Int[np.ndarray, " m"]) -> "Ragged":
        """Return the sequences at these rows, in this order."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], lengths.cumsum()])
        shift = np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Ragged(self.values[shift + np.arange(offsets[-1])], offsets)


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Sequences of symbols: all that a source returns.

    Raises:
        TypeError: ids or labels that are not ints.
        ValueError: an id outside of the symbols, with its row; a sequence that does not fit the
            shape; labels or classes that do not fit; symbols that are not distinct.
    """

    ids: Sequence[np.ndarray] | Int[np.ndarray, "N L"]
    """Ids of each sequence, 0..V-1: one array (N, L), or arrays of any lengths."""
    symbols: tuple[str, ...]
    """Names of the V symbols."""
    shape: tuple[int, ...] = ()
    """Shape of one sequence, e.g. (28, 28), whose ids come row by row; () for none."""
    values: tuple[int, ...] = ()
    """Value of grey or colour of each symbol, for pictures."""
    labels: Int[np.ndarray, " N"] | None = None
    """Index of each sequence's class."""
    classes: tuple[str, ...] = ()
    """Names of the classes."""
    given: Sequence[np.ndarray] | None = None
    """True at the tokens of each sequence that are context, not learned; bool, as long as its ids.

    None without such tokens."""
    separator: str = ""
    """What is printed between two symbols: nothing for characters, a space for numbers."""
    voices: int = 1
    """Number of voices of music, which are interleaved."""
    observed: bool = False
    """Whether the symbols are those that were found in the sequences, not a given alphabet: train
    must have all.
    """
    notes: tuple[str, ...] = ()
    """Remarks of the source, for the summary."""
    left_out: int = 0
    """Number of sequences that the source left out."""
    recipe: str = "owt mdlm"
    """Command and variant that train on them, behind ``python -m recipes.``."""

    def __post_init__(self) -> None:
        if not self.symbols:
            raise ValueError("symbols: must have at least one")
        if len(set(self.symbols)) != len(self.symbols) or "" in self.symbols:
            twice = next(
                name for n, name in enumerate(self.symbols) if not name or name in self.symbols[:n]
            )
            raise ValueError(f"symbols: {twice!r} is empty or occurs twice, names must be distinct")
        if self.separator and (bad := [name for name in self.symbols if name.split() != [name]]):
            raise ValueError(
                f"symbols: {bad[0]!r} has white space, and separator={self.separator!r} is printed "
                "between symbols"
            )
        if self.values and len(self.values) != len(self.symbols):
            raise ValueError(
                f"values: there are {len(self.values)}, must be one for each of "
                f"{len(self.symbols)} symbols"
            )
        ids = self.ragged
        check_range(ids, len(self.symbols), "ids")
        size = int(np.prod(self.shape)) if self.shape else None
        if size is not None and len(odd := np.flatnonzero(ids.lengths != size)):
            raise ValueError(
                f"shape={self.shape}: row {odd[0]} has {ids.lengths[odd[0]]} symbols, every row "
                f"must have {size}"
            )
        if self.given is not None:
            check_given(self.given, ids)
        if self.labels is None:
            return
        labels = np.asarray(self.labels)
        check_ints(labels, "labels")
        if labels.shape != (len(ids),):
            raise ValueError(
                f"labels: have shape {labels.shape}, must be one for each of {len(ids)} sequences"
            )
        bad = np.flatnonzero((labels < 0) | (labels >= len(self.classes)))
        if len(bad):
            raise ValueError(
                f"labels: row {bad[0]} is {labels[bad[0]]}, there are {len(self.classes)} classes"
            )

    @cached_property
    def ragged(self) -> Ragged:
        """The ids as one array and offsets."""
        if isinstance(self.ids, np.ndarray) and self.ids.ndim == 2:
            check_ints(self.ids, "ids")
            count, length = self.ids.shape
            return Ragged(np.ascontiguousarray(self.ids).reshape(-1), np.arange(count + 1) * length)
        return Ragged.of(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Int[np.ndarray, " m"]) -> "Sequences":
        """Return the sequences at these rows, in this order."""
        labels = None if self.labels is None else np.asarray(self.labels)[rows]
        given = None if self.given is None else [self.given[row] for row in rows]
        return replace(self, ids=self.ragged.select(rows), labels=labels, given=given)

    def make_tokenizer(self, ends: bool) -> Tokenizer:
        """Return a tokenizer of the names of the symbols, whose ids are those of the sequences.

        Args:
            ends: whether it gets an end and padding behind the symbols.
        """
        return named_tokenizer(self.symbols, self.separator, ends)

    def make_layout(self, kind: str, ends: bool, lengths: Mapping[int, int]) -> "Layout":
        """Return the layout that a folder of the sequences keeps.

        Args:
            kind: kind of the source.
            ends: whether the end of each sequence is added.
            lengths: number of sequences of each length.
        """
        return Layout(
            kind=kind,
            shape=self.shape,
            values=self.values,
            classes=self.classes,
            separator=self.separator,
            ends=ends,
            voices=self.voices,
            lengths=lengths,
            recipe=self.recipe,
        )

    def files(self) -> Mapping[str, str]:
        """Return the texts of further files of the folder of these sequences, by name."""
        return {}

    def match(self, other: "Sequences", name: str) -> "Sequences":
        """Return the sequences in the symbols and classes of ``other``, by their names.

        A note lists symbols of a given alphabet that ``other`` does not contain.

        Args:
            other: sequences of the training split.
            name: name of these sequences for messages.

        Raises:
            ValueError: a class, or a symbol that was found in the sequences, which ``other`` does
                not contain; another shape; labels or given tokens in one of the two
                alone.
        """
        if self.shape != other.shape:
            raise ValueError(
                f"{name}: sequences have shape {self.shape}, those of train {other.shape}"
            )
        if (self.given is None) != (other.given is None):
            marked, without = (name, "train") if other.given is None else ("train", name)
            raise ValueError(f"given: {marked} has given tokens and {without} none")
        if (self.labels is None) != (other.labels is None):
            with_labels, without = (name, "train") if other.labels is None else ("train", name)
            raise ValueError(f"labels: {with_labels} has them and {without} none")
        values = _match(self.symbols, other.symbols)[self.ragged.values]
        seen = np.zeros(len(other.symbols), dtype=bool)
        seen[other.ragged.values] = True
        ids = np.unique(self.ragged.values[(values < 0) | ~seen[values]])
        unseen = [self.symbols[index] for index in ids]
        fault = (
            f"contains {len(unseen)} symbol{'s' * (len(unseen) != 1)} that train does not contain: "
        )
        fault += ", ".join(map(repr, unseen[:LISTED]))
        if unseen and (other.observed or (values < 0).any()):
            raise ValueError(
                f"{name}: {fault}. Hold out other sequences (--shuffle SEED), leave those out, or "
                "state "
                "the alphabet where the source takes one (array --vocab N)"
            )
        labels = None
        if self.labels is not None:
            labels = _match(self.classes, other.classes)[np.asarray(self.labels)]
            if len(bad := np.flatnonzero(~np.isin(labels, np.asarray(other.labels)))):
                unknown = self.classes[int(self.labels[bad[0]])]
                raise ValueError(
                    f"labels: row {bad[0]} of {name} is {unknown!r}, a class that train does not "
                    "contain"
                )
        notes = (*self.notes, fault) if unseen else self.notes
        ids = Ragged(values, self.ragged.offsets)
        return replace(other, ids=ids, labels=labels, given=self.given, notes=notes)


def _match(mine: Sequence[str], theirs: Sequence[str]) -> Int[np.ndarray, " V"]:
    places = {name: place for place, name in enumerate(theirs)}
    return np.array([places.get(name, -1) for name in mine] or [0], dtype=np.int64)


def check_given(given: Sequence[np.ndarray], ids: Ragged) -> None:
    """Raise unless given tokens are marked by bool, one mark for each id, in every sequence.

    Raises:
        TypeError: marks that are not bool.
        ValueError: another number of sequences or of marks; a sequence of given tokens alone.
    """
    if len(given) != len(ids):
        raise ValueError(f"given: has {len(given)} rows, must have one for each of {len(ids)}")
    for row, (marks, length) in enumerate(zip(given, ids.lengths.tolist(), strict=True)):
        kind = getattr(marks, "dtype", type(marks).__name__)
        if kind != np.dtype(bool):
            raise TypeError(
                f"given: row {row} has dtype {kind}, must be bool, True at given tokens"
            )
        if marks.shape != (length,):
            raise ValueError(f"given: row {row} has shape {marks.shape}, must be ({length},)")
        if length and bool(marks.all()):
            raise ValueError(
                f"given: row {row} is True at all of its {length} tokens, must be False at one: "
                "nothing else is learned"
            )


def check_ints(array: np.ndarray, place: str) -> None:
    """Raise TypeError for an array that does not hold ints."""
    if array.dtype.kind not in "iu":
        raise TypeError(f"{place}: holds {array.dtype}, must hold ints, the ids of symbols")


def check_range(ids: Ragged, vocab: int, place: str) -> None:
    """Raise ValueError for an id outside of 0..vocab-1, with its row and position."""
    if not len(ids.values):
        return
    if int(ids.values.min()) >= 0 and int(ids.values.max()) < vocab:
        return
    at = int(np.flatnonzero((ids.values < 0) | (ids.values >= vocab))[0])
    row = int(np.searchsorted(ids.offsets, at, side="right")) - 1
    value = int(ids.values[at])
    position = at - int(ids.offsets[row])
    rule = "must not be negative" if value < 0 else f"must be below vocab={vocab}"
    raise ValueError(f"{place}: row {row} holds id {value} at position {position}, {rule}")


def index_labels(
    column: Sequence[Any], place: str
) -> tuple[Int[np.ndarray, " N"], tuple[str, ...]]:
    """Return the index of the class of each label, and the names of the classes, sorted.

    Args:
        column: ints or strings.
        place: name of the column for messages.

    Raises:
        ValueError: a missing label, with its row.
        TypeError: labels that are neither ints nor strings.
    """
    labels = column.tolist() if isinstance(column, np.ndarray) else list(column)
    for row, label in enumerate(labels):
        if label is None or label == "" or label != label:  # NaN is not equal to itself
            raise ValueError(f"{place}: row {row} has no label, every row must have one")
        if not isinstance(label, int | str):
            raise TypeError(f"{place}: row {row} is {label!r}, must be an int or a string")
    if len({isinstance(label, str) for label in labels}) > 1:
        raise TypeError(f"{place}: has ints and strings, must have labels of one kind")
    classes = sorted(set(labels))
    places = {label: number for number, label in enumerate(classes)}
    return np.array([places[label] for label in labels], dtype=np.int64), tuple(map(str, classes))


def number_symbols(vocab: int) -> tuple[str, ...]:
    """Return the ids themselves as names of symbols: 0, 1, 2, ..."""
    return tuple(map(str, range(vocab)))


def count_lengths(lengths: Int[np.ndarray, " N"]) -> Iterator[tuple[int, int]]:
    """Yield each length and the number of its sequences, the shortest first."""
    values, counts = np.unique(lengths, return_counts=True)
    yield from zip(values.tolist(), counts.tolist(), strict=True)
