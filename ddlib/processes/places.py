"""Places of a batch that one call of a process evaluates, and the join of their results."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
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
    def write(self, total: Tensor, values: Tensor) -> None:
        """Set the values of these positions in ``total`` (B, L, ...), of their dtype."""


class Everywhere(Place):
    """All positions."""

    def take(self, values: Tensor) -> Tensor:
        return values

    def write(self, total: Tensor, values: Tensor) -> None:
        total.copy_(values)


class Columns(Place):
    """The same positions (n,) of every sequence."""

    def __init__(self, index: Int64[Tensor, "n"]) -> None:
        self.index = index

    def take(self, values: Tensor) -> Tensor:
        return values if values.ndim == 1 else values.index_select(1, self.index)

    def write(self, total: Tensor, values: Tensor) -> None:
        total.index_copy_(1, self.index, values)


class Rows(Place):
    """Any positions, where a mask (B, L) is True, each a sequence of length 1."""

    def __init__(self, where: Bool[Tensor, "B L"]) -> None:
        self.index = where.nonzero(as_tuple=True)

    def take(self, values: Tensor) -> Tensor:
        return values[self.index[0]] if values.ndim == 1 else values[self.index][:, None]

    def write(self, total: Tensor, values: Tensor) -> None:
        total[self.index] = values[:, 0]


class Among(Place):
    """Any positions, where a mask (B, L) is True, of a call at all positions.

    For draws, whose generator may have a number of rows. Integers elsewhere are replaced by 0 and
    bool by False, and results there are ignored.
    """

    def __init__(self, where: Bool[Tensor, "B L"]) -> None:
        self.where = where

    def take(self, values: Tensor) -> Tensor:
        if values.is_floating_point():
            return values
        return torch.where(self.where, values, values.new_zeros(()))

    def write(self, total: Tensor, values: Tensor) -> None:
        where = self.where.view(*self.where.shape, *[1] * (values.ndim - 2))
        total.copy_(torch.where(where, values, total))


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
        """Yield the number, the process and the place of each part that occurs in a batch; with
        draws, where the fields are not those of the product's positions, of each part.

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
            if draws:  # a part that does not occur, too: the draws of a row depend on it alone
                yield k, process, Among(where)
            elif bool(where.all()):
                yield k, process, Everywhere()
            elif bool(where.any()):
                yield k, process, Rows(where)

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
        parts, processes, places = zip(*self.places(field, draws), strict=True)
        taken = [_take_each(value, processes, places) for value in arguments]
        results = []
        for k, process, own in zip(parts, processes, zip(*taken, strict=True), strict=True):
            result = getattr(process, name)(*own, **options)
            values = result if isinstance(result, tuple) else (result,)
            results.append(values if spread is None else [spread(k, value) for value in values])
        joined = [_join(values, places, field.shape) for values in zip(*results, strict=True)]
        return tuple(joined) if len(joined) > 1 else joined[0]


def _take_each(value: Any, processes: Sequence[Any], places: Sequence[Place]) -> Sequence[Any]:
    """Return an argument of each part; of distributions (B, L, V) those over its own tokens."""
    if isinstance(value, list):
        return [
            [place.take(each) for each in value[: process.num_uniforms]]
            for process, place in zip(processes, places, strict=True)
        ]
    if not isinstance(value, Tensor):
        return [value] * len(places)
    if value.ndim < 3:
        return [place.take(value) for place in places]
    sizes = [process.vocab_size for process in processes]
    if len(places) == 1:
        return [places[0].take(value)[..., : sizes[0]]]
    # compiled graphs cannot hold a function with a ``jvp``, and fuse the sums
    take = _take if torch.compiler.is_compiling() else _Take.apply
    taken: Sequence[Tensor] = take(value, places, sizes)
    return taken


def _take(values: Tensor, places: Sequence[Place], sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Return values (B, L, V) at each place, and of its first entries."""
    parts = zip(places, sizes, strict=True)
    return tuple(place.take(values[..., :size]) for place, size in parts)


def _join(values: Sequence[Tensor], places: Sequence[Place], shape: Sequence[int]) -> Tensor:
    """Return the values of all positions, given those at places that cover the batch, in one
    dtype.
    """
    if len(places) == 1:
        return values[0]
    dtype = reduce(torch.promote_types, [value.dtype for value in values])
    total = values[0].new_zeros(*shape, *values[0].shape[2:], dtype=dtype)
    for value, place in zip(values, places, strict=True):
        place.write(total, value.to(dtype))
    return total


class _Take(torch.autograd.Function):
    """``_take`` with other gradients.

    They are written into one tensor. By autograd each would be padded with zeros to the
    size of all values, and these were added.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, places: Sequence[Place], sizes: Sequence[int]) -> Any:
        return _take(values, places, sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        values, ctx.places, ctx.sizes = inputs
        ctx.shape = values.shape

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        total = slopes[0].new_empty(ctx.shape)
        total[..., min(ctx.sizes) :] = 0.0
        for slope, place, size in zip(slopes, ctx.places, ctx.sizes, strict=True):
            place.write(total[..., :size], slope)
        return total, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return _take(tangent, ctx.places, ctx.sizes)
