"""Places of a batch that one call of a process evaluates, and the join of their results."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.utils.precision import Float64Module
from ddlib.utils.validation import visible


class Place(ABC):
    """Some positions of a batch (B, L)."""

    @abstractmethod
    def take(self, values: Tensor) -> Tensor:
        """Return the values (B, L, ...) at these positions, as sequences; of (B,) those of the
        sequences.
        """

    @abstractmethod
    def put(self, total: Tensor | None, values: Tensor, shape: Sequence[int]) -> Tensor:
        """Return ``total`` (B, L, ...), None for none yet, with the values of these positions."""


class Everywhere(Place):
    """All positions."""

    def take(self, values: Tensor) -> Tensor:
        return values

    def put(self, total: Tensor | None, values: Tensor, shape: Sequence[int]) -> Tensor:
        return values


class Columns(Place):
    """The same positions (n,) of every sequence."""

    def __init__(self, index: Int64[Tensor, "n"]) -> None:
        self.index = index

    def take(self, values: Tensor) -> Tensor:
        return values if values.ndim == 1 else values.index_select(1, self.index)

    def put(self, total: Tensor | None, values: Tensor, shape: Sequence[int]) -> Tensor:
        total, values = _alike(total, values, shape)
        return total.index_copy(1, self.index, values)


class Rows(Place):
    """Any positions, where a mask (B, L) is True, each a sequence of length 1."""

    def __init__(self, where: Bool[Tensor, "B L"]) -> None:
        self.index = where.nonzero(as_tuple=True)

    def take(self, values: Tensor) -> Tensor:
        return values[self.index[0]] if values.ndim == 1 else values[self.index][:, None]

    def put(self, total: Tensor | None, values: Tensor, shape: Sequence[int]) -> Tensor:
        total, values = _alike(total, values, shape)
        return total.index_put(self.index, values[:, 0])


class Among(Place):
    """Any positions, where a mask (B, L) is True, of a call at all positions.

    For draws, whose generator may have a number of rows. Integers elsewhere are replaced by 0, and
    results there are ignored.
    """

    def __init__(self, where: Bool[Tensor, "B L"]) -> None:
        self.where = where

    def take(self, values: Tensor) -> Tensor:
        return values if values.is_floating_point() else torch.where(self.where, values, 0)

    def put(self, total: Tensor | None, values: Tensor, shape: Sequence[int]) -> Tensor:
        where = self.where.view(*shape, *[1] * (values.ndim - 2))
        return values if total is None else torch.where(where, values, total)


class Partition(Float64Module):
    """Partition of the fields of a product into parts that are evaluated by one call each.

    Args:
        processes: the process of each part.
        part_of_field: number of the part of each field.
        fields: (L,) or (B, L) field of each position of the product.
    """

    def __init__(
        self,
        processes: Sequence[Any],
        part_of_field: Int64[Tensor, "N"],
        fields: Int64[Tensor, "*n"],
    ) -> None:
        super().__init__()
        self.processes = tuple(processes)
        self.part_of_field = part_of_field
        self.fields = fields
        self.columns: tuple[Tensor, ...] = ()
        if fields.ndim == 1 and len(processes) > 1:
            part = part_of_field[fields]
            self.columns = tuple((part == k).nonzero()[:, 0] for k in range(len(processes)))

    def is_usual(self, field: Int64[Tensor, "B L"]) -> bool:
        """Return whether the fields of a batch are those of the product's positions."""
        want = self.fields.shape
        if field.shape[-len(want) :] != want:
            return False
        return not visible(field) or bool((field == self.fields).all())

    def places(
        self, field: Int64[Tensor, "B L"], draws: bool = False
    ) -> Iterator[tuple[int, Any, Place]]:
        """Yield the number, the process and the place of each part that occurs in a batch.

        Args:
            field: field of each position.
            draws: whether random numbers are drawn for the rows of the batch.
        """
        if len(self.processes) == 1:
            yield 0, self.processes[0], Everywhere()
            return
        usual = bool(self.columns) and self.is_usual(field)
        part = field if usual else self.part_of_field[field]
        for k, process in enumerate(self.processes):
            if usual:
                if len(self.columns[k]):
                    yield k, process, Columns(self.columns[k])
                continue
            where = part == k
            if bool(where.all()):
                yield k, process, Everywhere()
            elif bool(where.any()):
                yield k, process, Among(where) if draws else Rows(where)

    def evaluate(
        self,
        name: str,
        field: Int64[Tensor, "B L"],
        *arguments: Any,
        draws: bool = False,
        spread: Callable[[int, Tensor], Tensor] | None = None,
        **options: Any,
    ) -> Any:
        """Return the results of a method of each part, put together: (B, L, ...), or a tuple.

        Args:
            name: the method.
            field: field of each position.
            arguments: of the method; tensors (B,), (B, L) and (B, L, V) are those of all parts. A
                part takes the first ``num_uniforms`` of a list, which holds uniforms (B, L).
            draws: see ``places``.
            spread: function of the number of a part and its result, by which results get one width.
            options: as they are.
        """
        totals: list[Any] = []
        for k, process, place in self.places(field, draws):
            own = [_own(value, process, place) for value in arguments]
            values = getattr(process, name)(*own, **options)
            results = values if isinstance(values, tuple) else (values,)
            if spread is not None:
                results = tuple(spread(k, value) for value in results)
            totals = totals or [None] * len(results)
            totals = [
                place.put(total, value, field.shape)
                for total, value in zip(totals, results, strict=True)
            ]
        return tuple(totals) if len(totals) > 1 else totals[0]


def _own(value: Any, process: Any, place: Place) -> Any:
    """Return an argument of a part; of distributions (B, L, V) its own tokens."""
    if isinstance(value, list):
        return [place.take(each) for each in value[: process.num_uniforms]]
    if not isinstance(value, Tensor):
        return value
    taken = place.take(value)
    return taken[..., : process.vocab_size] if value.ndim == 3 else taken


def _alike(total: Tensor | None, values: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the total, zeros for None, and values in one dtype."""
    if total is None:
        return values.new_zeros(*shape, *values.shape[2:]), values
    dtype = torch.promote_types(total.dtype, values.dtype)
    return total.to(dtype), values.to(dtype)
