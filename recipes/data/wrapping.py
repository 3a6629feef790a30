"""Rows that are cut from the concatenation of all documents, without padding: MDLM's ``wrap``."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from recipes.data.prepared import Documents, Prepared

EDGES = 2
"""Tokens that are added to each row: its begin and its end."""


class Wrapped(Documents):
    """Rows of ``length`` tokens in place of documents: begin, ``length - 2`` tokens of the
    concatenation, end.

    In the concatenation every document is followed by its end. Its beginning is left out, and so is
    the remainder behind the last whole row. A row may hold parts of several documents, which attend
    to each other. As in ``_group_texts`` of MDLM's ``dataloader.py``
    (github.com/kuleshov-group/mdlm, ``wrap=True``), which however drops a remainder for every 1,000
    documents.

    Args:
        documents: with an end each.
        length: tokens of a row.
        begin: first token of a row.
        end: last token of a row.
        skip: tokens at the beginning of each document that are left out.
    """

    def __init__(self, documents: Documents, length: int, begin: int, end: int, skip: int) -> None:
        self._documents = documents
        self._length = length
        self._begin = begin
        self._end = end
        self._skip = skip
        self._starts = np.concatenate([[0], np.cumsum(documents.lengths.astype(np.int64) - skip)])
        self.step = 1

    def __len__(self) -> int:
        return int(self._starts[-1]) // (self._length - EDGES)

    def __getitem__(self, index: int) -> Int[np.ndarray, " n"]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index}: there are {len(self)}")
        row = np.empty(self._length, dtype=np.int64)
        row[0] = self._begin
        row[-1] = self._end
        return self._fill(row, index, self._documents.__getitem__)

    @property
    def has_given(self) -> bool:
        return self._documents.has_given

    def given(self, index: int) -> Bool[np.ndarray, " n"]:
        """Return True at the given tokens of a row, of which begin and end are none."""
        return self._fill(np.zeros(self._length, dtype=bool), index, self._documents.given)

    def _fill(self, row: np.ndarray, index: int, read: Callable[[int], np.ndarray]) -> np.ndarray:
        """Write the values of the tokens between begin and end into a row."""
        size = self._length - EDGES
        first = index * size
        number = int(np.searchsorted(self._starts, first, side="right")) - 1
        filled = 1
        while filled <= size:
            offset = first + filled - 1 - int(self._starts[number])
            piece = read(number)[self._skip + offset :][: size - filled + 1]
            row[filled : filled + len(piece)] = piece
            filled = filled + len(piece)
            number = number + 1
        return row

    @cached_property
    def lengths(self) -> Int[np.ndarray, " N"]:
        """Number of tokens of each row."""
        return np.full(len(self), self._length)

    @cached_property
    def num_bytes(self) -> Int[np.ndarray, " N"]:
        """Mean number of UTF-8 bytes of a row, for each row.

        Raises:
            ValueError: as for the documents.
        """
        per_token = self._documents.num_bytes.sum() / int(self._starts[-1])
        return np.full(len(self), per_token * (self._length - EDGES))

    @property
    def labels(self) -> Int[np.ndarray, " N"]:  # type: ignore[override]
        """Always empty: a row is not a single document."""
        return np.empty(0, dtype=np.int64)


def wrap(data: Prepared, length: int, place: str = "data") -> Prepared:
    """Return prepared data whose splits are rows cut from the concatenation of their documents.

    Args:
        data: the prepared data.
        length: tokens of a row.
        place: place of the options in the recipe, for messages.

    Raises:
        ValueError: symbols with a shape, with labels, with several voices or without an end; rows
            of less than three tokens; less than one row to train on or two for validation.
    """
    option = f"{place}.wrap=True: not with {data.folder}, whose sequences"
    if data.shape:
        raise ValueError(
            f"{option} have shape {' x '.join(map(str, data.shape))}, which a row must keep"
        )
    if data.classes:
        raise ValueError(f"{option} have labels: a row would have several")
    if data.train.step > 1:
        raise ValueError(
            f"{option} have {data.train.step} interleaved voices: a row would begin with any of "
            "them"
        )
    if not data.ends or data.eos_id is None:
        raise ValueError(
            f"{option} have no end: prepare it again with --ends, or pass --{place}.packed"
        )
    if length <= EDGES:
        raise ValueError(f"{place}.length={length}: must be at least {EDGES + 1} with {place}.wrap")
    begin, skip = (data.eos_id, 0) if data.bos_id is None else (data.bos_id, 1)
    edges = begin, data.eos_id, skip
    train, validation = (Wrapped(split, length, *edges) for split in (data.train, data.validation))
    cut = replace(data, train=train, validation=validation)
    for name, rows, least in (("training", cut.train, 1), ("validation", cut.validation, 2)):
        if len(rows) < least:
            raise ValueError(
                f"{place}.length={length}: {data.folder} holds {len(rows)} whole rows of it for "
                f"{name}, must hold at "
                f"least {least} with {place}.wrap: use shorter rows, or prepare it again with more "
                "text"
            )
    return cut
