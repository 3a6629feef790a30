"""Blocks of a batch that need the same columns of the output layer: divergences and gradients of
their logits, computed in chunks.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, singledispatch
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from ddlib.processes import unsqueeze_times
from ddlib.typing import Logits, PerToken, Times, Tokens

Formula = Callable[[Logits, Tokens, Tokens, Times], PerToken]
Observer = Callable[[Tensor | slice | None, Tensor, Tensor], None]
"""Function of the columns of a block (None for all), the indices (n,) of some of its rows, and
their probabilities over
these columns (n, K)."""

Reader = Callable[[Tensor], None]
"""Function of probabilities (n, K): an ``Observer`` of known columns and rows."""


class FlatBatch(NamedTuple):
    """A flattened batch: clean token, noisy state and time of each row."""

    x: Int64[Tensor, "N"]
    z: Int64[Tensor, "N"]
    t: Float[Tensor, "N"]
    length: int = 1
    """Number of consecutive rows that have one time, a divisor of N."""

    @classmethod
    def of(cls, x: Tokens, z: Tokens, t: Times) -> "FlatBatch":
        """Flatten a batch."""
        times = unsqueeze_times(t.to(torch.float64)).expand_as(x).flatten()
        return cls(x.flatten(), z.flatten(), times, x.shape[1] if t.ndim == 1 else 1)

    def sequences(self) -> tuple[Tokens, Tokens, Times]:
        """Return tokens and states (B, length), and times (B,).

        Functions of time are evaluated B times.
        """
        length = max(self.length, 1)
        return self.x.view(-1, length), self.z.view(-1, length), self.t[::length]

    def take(self, index: Tensor) -> "FlatBatch":
        """Select rows."""
        return FlatBatch(self.x[index], self.z[index], self.t[index])


class Divergence(ABC):
    """Computes divergences, and their derivatives, from logits."""

    @abstractmethod
    def __call__(
        self,
        logits: Float[Tensor, "n K"],
        rows: FlatBatch,
        derive: bool,
        read: Reader | None = None,
    ) -> Float[Tensor, "n"]:
        """Compute the divergence of each row in nats.

        Args:
            logits: logits of the block's columns, float32 or float64; overwritten.
            rows: the rows they belong to.
            derive: whether to write d divergence / d logits into ``logits``.
            read: function to call with the probabilities, which the divergence computes anyway.
        """


class Dense(Divergence):
    """Divergence of any process: its ``formula(logits, x, z, t)``, each row a sequence of length 1,
    by autograd.
    """

    def __init__(self, formula: Formula) -> None:
        self.formula = formula

    def __call__(
        self,
        logits: Float[Tensor, "n K"],
        rows: FlatBatch,
        derive: bool,
        read: Reader | None = None,
    ) -> Float[Tensor, "n"]:
        if read is not None:
            read(logits.softmax(1))
        with torch.set_grad_enabled(derive):
            variable = logits.detach()[:, None].clone().requires_grad_(derive)
            value = self.formula(variable, rows.x[:, None], rows.z[:, None], rows.t).squeeze(1)
            if derive:
                (slope,) = torch.autograd.grad(value.sum(), variable)
                logits.copy_(slope.squeeze(1))
        return value.detach()


class LossPart:
    """Base class of parts of a plan, computed by ``add``.

    Rows of no part have divergence 0.
    """

    def read(self) -> None:
        """Read on the host what a computation with gradients needs there."""

    def observed(self, observe: Observer | None) -> "LossPart":
        """Return the part with a function that reads the probabilities of its rows, None for none.

        Parts of other kernels are returned as they are: they do not compute them.
        """
        return self


@dataclass(frozen=True)
class Block(LossPart):
    """Rows that share their columns."""

    rows: Int64[Tensor, "n"]
    """Indices of the rows."""
    columns: Int64[Tensor, "K"] | slice | None
    """Indices of the columns, None for all."""
    divergence: Divergence
    observe: Observer | None = None
    """Function that reads the probabilities of the rows; None for none."""

    def observed(self, observe: Observer | None) -> "Block":
        return replace(self, observe=observe)


# logits in memory at a time, on accelerators that is where a wave of rows needs no more
_ON_CPU = 1 << 23
_ON_ACCELERATORS = 1 << 27
_MOST_ON_ACCELERATORS = 3 << 27
# Tile of the matrix products of cuBLAS: rows and columns of the result per multiprocessor.
_TILE = 128, 256
# Rows of logits start at multiples of so many: cuBLAS is slow if they are not at multiples of 16 B.
_ALIGNED = 64
# columns multiplied at a time on a CPU: MKL takes 1.5 times as long for rows as wide as a
# vocabulary
_STRIPE = 512
# Slabs per chunk: a divergence takes one at a time, so that its scratch memory stays in a CPU's
# cache.
_SLABS = 8


class Layer(NamedTuple):
    """Hidden states, and matrix and bias of the output layer."""

    hidden: Float[Tensor, "N D"]
    weight: Float[Tensor, "K D"]
    bias: Float[Tensor, "K"] | None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Layer":
        """Apply a function to all tensors."""
        return Layer(
            change(self.hidden),
            change(self.weight),
            None if self.bias is None else change(self.bias),
        )

    def cast(self, dtype: torch.dtype | None) -> "Layer":
        """Return the layer in a dtype, None for its own.

        Within a loss, so that its gradients are summed in float32 and rounded once, to the dtype of
        the parameters.
        """
        return self if dtype is None else self.each(lambda tensor: tensor.to(dtype))


class Gradients(NamedTuple):
    """Gradients with respect to the tensors of a ``Layer``."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def zeros(cls, layer: Layer) -> "Gradients":
        """Return zeros; for parameters at least in float32, since thousands of rows are summed."""
        sum_dtype = torch.promote_types(layer.weight.dtype, torch.float32)
        bias = None if layer.bias is None else torch.zeros_like(layer.bias, dtype=sum_dtype)
        # contiguous rows for any layout: the kernels add to them
        contiguous = torch.contiguous_format
        hidden = torch.zeros_like(layer.hidden, memory_format=contiguous)
        weight = torch.zeros_like(layer.weight, dtype=sum_dtype, memory_format=contiguous)
        return cls(hidden, weight, bias)


class Budget(NamedTuple):
    """Number of logits in memory at a time, and how a chunk of them is laid out.

    The product for the gradients of hidden states, (n, K) x (K, D), has few tiles: of n = 2,500
    rows and D = 768 columns so few that half of a GPU's multiprocessors have none. So a chunk has
    whole waves of rows, where a wave has a tile for every multiprocessor.
    """

    logits: int
    """Number of logits of a chunk, if it has at least a wave of rows."""
    most: int
    """Number of logits that a chunk of one wave may have."""
    wave: int = 1
    """Rows of a wave, 1 on a CPU."""
    aligned: int = 1
    """Rows of logits start at multiples of this number."""

    @classmethod
    def of(cls, hidden: Tensor, chunk: int | None) -> "Budget":
        """Return that of a device.

        Args:
            hidden: hidden states (N, D).
            chunk: number of logits in memory at a time; None for the default.
        """
        if hidden.device.type == "cpu":
            logits = chunk or _ON_CPU
            return cls(logits, logits)
        if chunk is not None or hidden.device.type != "cuda":
            logits = chunk or _ON_ACCELERATORS
            return cls(logits, logits, aligned=_ALIGNED)
        processors = torch.cuda.get_device_properties(hidden.device).multi_processor_count
        wave = rows_of_wave(hidden.shape[1], processors)
        return cls(_ON_ACCELERATORS, _MOST_ON_ACCELERATORS, wave, _ALIGNED)

    def rows(self, columns: int) -> int:
        """Return the number of rows of a chunk of so many columns."""
        fitting = max(self.logits // columns, 1)
        if fitting >= self.wave:
            return fitting // self.wave * self.wave
        return self.wave if self.wave * columns <= self.most else fitting

    def space(self, hidden: Tensor, rows: int, columns: int) -> Float[Tensor, "n K"]:
        """Return memory for a chunk."""
        padded = -(-columns // self.aligned) * self.aligned
        return hidden.new_empty(rows, padded)[:, :columns]


def rows_of_wave(width: int, processors: int) -> int:
    """Return the largest number of rows whose products of this width have at most one tile for each
    multiprocessor.
    """
    rows, columns = _TILE
    return rows * max(processors // -(-width // columns), 1)


class Work(NamedTuple):
    """Shared state of the parts of a plan: each part adds to ``values`` and to ``gradients``."""

    layer: Layer
    rows: FlatBatch
    scale: Float[Tensor, "N"] | None
    """Factor of the gradients of each row; None for no gradients."""
    budget: Budget
    values: Float[Tensor, "N"]
    gradients: Gradients | None


def run(
    layer: Layer,
    blocks: Sequence[LossPart],
    rows: FlatBatch,
    scale: Float[Tensor, "N"] | None,
    chunk: int | None,
) -> tuple[Float[Tensor, "N"], Gradients | None]:
    """Compute the divergence of every row, 0 for rows of no block, and the gradients of sum(scale *
    divergence).

    Args:
        layer: hidden states of all rows, and the output layer.
        blocks: the parts of the plan.
        rows: x, z and t of each row.
        scale: factor of each row, or None for no gradients.
        chunk: number of logits in memory at a time.
    """
    hidden = layer.hidden
    sum_dtype = torch.promote_types(hidden.dtype, torch.float32)
    values = torch.zeros(len(hidden), dtype=sum_dtype, device=hidden.device)
    gradients = None if scale is None else Gradients.zeros(layer)
    work = Work(layer, rows, scale, Budget.of(hidden, chunk), values, gradients)
    with torch.autocast(hidden.device.type, enabled=False):
        for block in blocks:
            add(block, work)
    return values, gradients


@singledispatch
def add(part: LossPart, work: Work) -> None:
    """Compute one part of a plan; registered for each subclass of ``LossPart``."""
    raise TypeError(f"part is a {type(part).__name__}, for which no computation is registered")


@add.register
def _add_block(block: Block, work: Work) -> None:
    (hidden, weight, bias), rows, scale, budget, values, gradients = work
    if len(block.rows) == 0:
        return  # torch would split it into one empty chunk
    columns = slice(None) if block.columns is None else block.columns
    matrix, offset = columns_of(weight, bias, columns)
    slab = max(budget.logits // _SLABS // len(matrix), 1)
    for index, h, logits in in_chunks(block.rows, Layer(hidden, matrix, offset), budget):
        for slab_index, narrow in zip(index.split(slab), logits.split(slab), strict=True):
            logits_of_slab = narrow.to(values.dtype)
            read = (
                None if block.observe is None else partial(block.observe, block.columns, slab_index)
            )
            values[slab_index] = block.divergence(
                logits_of_slab, rows.take(slab_index), gradients is not None, read
            )
            if logits_of_slab is not narrow and gradients is not None:
                # the derivatives, in the dtype of the products below
                narrow.copy_(logits_of_slab)
        if gradients is None or scale is None:
            continue
        factor = scale[index].to(values.dtype)[:, None]
        add_gradients(gradients, index, columns, matrix, logits, h, factor)


def add_gradients(
    gradients: Gradients,
    index: Tensor,
    columns: Tensor | slice,
    matrix: Tensor,
    slopes: Tensor,
    h: Tensor,
    factor: Tensor | None,
) -> None:
    """Add the gradients of some rows and columns.

    Args:
        gradients: those of the hidden states are set.
        index: (n,) the rows.
        columns: the K columns.
        matrix: (K, D) their part of the output layer.
        slopes: (n, K) derivatives with respect to the logits.
        h: (n, D) hidden states.
        factor: (n, 1) factor of each row; None if ``slopes`` has it.
    """
    by_hidden = slopes @ matrix
    if factor is None:
        by_bias = h.new_ones(len(h), 1)
    else:
        by_hidden = by_hidden * factor
        # the factor scales rows of h, not those of the slopes, which are wider
        h = (h * factor).to(h.dtype)
        by_bias = factor.to(h.dtype)
    gradients.hidden[index] = by_hidden.to(h.dtype)
    add_product(gradients.weight, columns, slopes.t(), h)
    if gradients.bias is not None:
        add_product(gradients.bias[:, None], columns, slopes.t(), by_bias)


def in_chunks(
    rows: Int64[Tensor, "n"], layer: Layer, budget: Budget
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the rows of each chunk, their hidden states, and their logits, in the same memory.

    Args:
        rows: at least one row of the hidden states.
        layer: hidden states of all rows, and the columns that these rows need.
        budget: size of a chunk.
    """
    columns = len(layer.weight)
    # the same number of chunks, of equal size
    chunk = math.ceil(len(rows) / math.ceil(len(rows) / budget.rows(columns)))
    # one buffer for all chunks, against memory fragmentation
    space = budget.space(layer.hidden, chunk, columns)
    for index in rows.split(chunk):
        h = layer.hidden[index]
        yield index, h, multiply(h, layer.weight, layer.bias, space[: len(index)])


def columns_of(
    weight: Tensor, bias: Tensor | None, columns: Tensor | slice
) -> tuple[Tensor, Tensor | None]:
    """Select output columns, i.e. rows of the matrix; a slice gives a view."""
    # twice as fast as []
    matrix = weight[columns] if isinstance(columns, slice) else weight.index_select(0, columns)
    return matrix, None if bias is None else bias[columns]


def multiply(
    h: Float[Tensor, "n D"],
    matrix: Float[Tensor, "K D"],
    offset: Float[Tensor, "K"] | None,
    into: Float[Tensor, "n K"],
) -> Float[Tensor, "n K"]:
    """Compute h @ matrix.T + offset into the last argument."""
    width = _STRIPE if h.device.type == "cpu" else len(matrix)
    for begin in range(0, len(matrix), width):
        stripe = slice(begin, begin + width)
        if offset is None:
            torch.mm(h, matrix[stripe].t(), out=into[:, stripe])
        else:
            torch.addmm(offset[stripe], h, matrix[stripe].t(), out=into[:, stripe])
    return into


def add_product(into: Tensor, columns: Tensor | slice, left: Tensor, right: Tensor) -> None:
    """Add left @ right to the selected rows of ``into``."""
    if isinstance(columns, Tensor):
        into.index_add_(0, columns, (left @ right).to(into.dtype))
    elif into.dtype == left.dtype:
        into[columns].addmm_(left, right)  # in place: no second matrix of this size
    elif adds_wider(left.dtype, into.dtype, into.device):
        # the sum over chunks is rounded to float32 alone, and no product is stored
        torch.addmm(into[columns], left, right, out_dtype=into.dtype, out=into[columns])
    else:
        into[columns].add_(left @ right)


@cache
def adds_wider(dtype: torch.dtype, into: torch.dtype, device: torch.device) -> bool:
    """Return whether a device adds products of matrices of one dtype to a matrix of a wider one."""
    if device.type != "cuda":
        return False
    one = torch.ones(16, 16, dtype=dtype, device=device)
    total = torch.ones(16, 16, dtype=into, device=device)
    try:
        torch.addmm(total, one, one, out_dtype=into, out=total)
    except (RuntimeError, TypeError, NotImplementedError):  # by torch, library and card
        return False
    return bool((total == 17).all())


class PerTokenLoss(torch.autograd.Function):
    """Divergence of each row; the backward pass recomputes the logits, since the gradient scales
    are unknown before.
    """

    @staticmethod
    def forward(
        ctx: Any,
        blocks: Any,
        rows: FlatBatch,
        chunk: int | None,
        dtype: torch.dtype | None,
        *layer: Any,
    ) -> Tensor:
        # the backward pass computes the same probabilities once more
        ctx.plan = [block.observed(None) for block in blocks], rows, chunk, dtype
        ctx.save_for_backward(*layer)
        return run(Layer(*layer).cast(dtype), blocks, rows, None, chunk)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        blocks, rows, chunk, dtype = ctx.plan
        layer = Layer(*ctx.saved_tensors)
        gradients = run(layer.cast(dtype), blocks, rows, slope, chunk)[1]
        assert gradients is not None
        return None, None, None, None, *_like(gradients, layer)


class SummedLoss(torch.autograd.Function):
    """sum(scale * divergence), and the divergences.

    The forward pass computes the gradients from the same logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        blocks: Any,
        rows: FlatBatch,
        chunk: int | None,
        dtype: torch.dtype | None,
        scale: Tensor,
        *layer: Any,
    ) -> Any:
        derive = any(tensor is not None and tensor.requires_grad for tensor in layer)
        values, gradients = run(
            Layer(*layer).cast(dtype), blocks, rows, scale if derive else None, chunk
        )
        layer_gradients = (
            (None,) * len(layer) if gradients is None else _like(gradients, Layer(*layer))
        )
        # the scale has a gradient if it depends on a learned weighting
        ctx.save_for_backward(
            *layer_gradients, values.to(scale.dtype) if scale.requires_grad else None
        )
        ctx.mark_non_differentiable(values)
        return (values * scale.to(values.dtype)).sum(), values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Any) -> Any:
        saved = ctx.saved_tensors
        # a comparison would synchronise an accelerator
        if slope.device.type != "cpu" or slope != 1:
            saved = tuple(
                None if tensor is None else tensor * slope.to(tensor.dtype) for tensor in saved
            )
        *layer_gradients, of_scale = saved
        return None, None, None, None, of_scale, *layer_gradients


def _like(gradients: Gradients, layer: Layer) -> tuple[Tensor | None, ...]:
    pairs = zip(gradients, layer, strict=True)
    return tuple(None if g is None or p is None else g.to(p.dtype) for g, p in pairs)
