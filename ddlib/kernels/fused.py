"""The output layer, the divergences and their gradients, block by block and chunk by chunk."""

import math
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ddlib.kernels.tile import Block, Part, Rows

_LOGITS = {"cpu": 1 << 23}
_ON_ACCELERATORS = 1 << 27
_STRIPE = 512  # columns a CPU multiplies at a time: MKL takes half as long again for rows as wide as a vocabulary
_SLABS = 8  # of a chunk: a divergence sees one at a time, so what it stores beside is small and stays in a CPU's cache


class Layer(NamedTuple):
    """Hidden states, and the output layer's matrix and bias."""

    hidden: Float[Tensor, "N D"]
    weight: Float[Tensor, "K D"]
    bias: Float[Tensor, "K"] | None

    def each(self, change: Callable[[Tensor], Tensor]) -> "Layer":
        """All of them changed in one way."""
        return Layer(change(self.hidden), change(self.weight), None if self.bias is None else change(self.bias))


class Gradients(NamedTuple):
    """What ``Layer`` holds, differentiated."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def zeros(cls, layer: Layer) -> "Gradients":
        """Nothing yet; the parameters' in float32 at least, since thousands of rows are added up."""
        wide = torch.promote_types(layer.weight.dtype, torch.float32)
        bias = None if layer.bias is None else torch.zeros_like(layer.bias, dtype=wide)
        # rows that lie in one piece, however the matrix lies: kernels add to them
        weight = torch.zeros_like(layer.weight, dtype=wide, memory_format=torch.contiguous_format)
        return cls(torch.zeros_like(layer.hidden), weight, bias)


class Work(NamedTuple):
    """What the parts of a plan share: each puts its divergences into ``values`` and adds its gradients."""

    layer: Layer
    rows: Rows
    scale: Float[Tensor, "N"] | None
    """By what the gradients of each token are multiplied; None for no gradients."""
    held: int
    """Number of logits at a time."""
    values: Float[Tensor, "N"]
    gradients: Gradients | None


def run(
    layer: Layer, blocks: Sequence[Part], rows: Rows, scale: Float[Tensor, "N"] | None, chunk: int | None
) -> tuple[Float[Tensor, "N"], Gradients | None]:
    """The divergence of every token, 0 where no block has it; and the gradients of sum(scale * divergence).

    Args:
        layer: hidden states of all tokens, and the matrix.
        blocks: who needs what.
        rows: the tokens.
        scale: of each token, or None for no gradients.
        chunk: number of logits held at a time.
    """
    hidden = layer.hidden
    wide = torch.promote_types(hidden.dtype, torch.float32)
    values = torch.zeros(len(hidden), dtype=wide, device=hidden.device)
    gradients = None if scale is None else Gradients.zeros(layer)
    held = chunk or _LOGITS.get(hidden.device.type, _ON_ACCELERATORS)
    work = Work(layer, rows, scale, held, values, gradients)
    with torch.autocast(hidden.device.type, enabled=False):
        for block in blocks:
            add(block, work)
    return values, gradients


@singledispatch
def add(part: Part, work: Work) -> None:
    """Does a part of the work."""
    raise TypeError(f"no way to compute a {type(part).__name__}")


@add.register
def _block(block: Block, work: Work) -> None:
    (hidden, weight, bias), rows, scale, held, values, gradients = work
    if len(block.rows) == 0:
        return  # torch would split it into one empty chunk
    columns = slice(None) if block.columns is None else block.columns
    matrix, offset = columns_of(weight, bias, columns)
    chunk = max(held // len(matrix), 1)
    chunk = math.ceil(len(block.rows) / math.ceil(len(block.rows) / chunk))  # as many, but equal
    slab = max(held // _SLABS // len(matrix), 1)
    space = hidden.new_empty(chunk, len(matrix))  # one for all chunks: a heap with holes grows
    for index in block.rows.split(chunk):
        h, logits = hidden[index], space[: len(index)]
        multiply(h, matrix, offset, logits)
        for some, narrow in zip(index.split(slab), logits.split(slab), strict=True):
            wide = narrow.to(values.dtype) if block.divergence.wide else narrow
            values[some] = block.divergence(wide, rows.take(some), gradients is not None)
            if wide is not narrow and gradients is not None:
                narrow.copy_(wide)
        if gradients is None or scale is None:
            continue
        here = scale[index].to(values.dtype)[:, None]
        gradients.hidden[index] = ((logits @ matrix) * here).to(h.dtype)
        add_product(gradients.weight, columns, logits.t(), (h * here).to(h.dtype))
        if gradients.bias is not None:
            add_product(gradients.bias[:, None], columns, logits.t(), here.to(h.dtype))


def columns_of(weight: Tensor, bias: Tensor | None, columns: Tensor | slice) -> tuple[Tensor, Tensor | None]:
    """Some columns of the output layer, rows of its matrix: a view of those that lie next to each other."""
    matrix = weight[columns] if isinstance(columns, slice) else weight.index_select(0, columns)  # half an index's time
    return matrix, None if bias is None else bias[columns]


def multiply(
    h: Float[Tensor, "n D"], matrix: Float[Tensor, "K D"], offset: Float[Tensor, "K"] | None, into: Float[Tensor, "n K"]
) -> Float[Tensor, "n K"]:
    """h @ matrix.T + offset, put into the last argument."""
    width = _STRIPE if h.device.type == "cpu" else len(matrix)
    for begin in range(0, len(matrix), width):
        some = slice(begin, begin + width)
        if offset is None:
            torch.mm(h, matrix[some].t(), out=into[:, some])
        else:
            torch.addmm(offset[some], h, matrix[some].t(), out=into[:, some])
    return into


def add_product(into: Tensor, columns: Tensor | slice, left: Tensor, right: Tensor) -> None:
    """Adds left @ right to some rows."""
    if isinstance(columns, Tensor):
        into.index_add_(0, columns, (left @ right).to(into.dtype))
    elif into.dtype == left.dtype:
        into[columns].addmm_(left, right)  # in place: no second matrix of this size
    else:
        into[columns].add_(left @ right)


class PerTokenLoss(torch.autograd.Function):
    """Divergences by token; what is made of them is not known yet, so their gradients are computed afterwards."""

    @staticmethod
    def forward(ctx: Any, blocks: Any, rows: Rows, chunk: int | None, *layer: Any) -> Tensor:
        ctx.plan = blocks, rows, chunk
        ctx.save_for_backward(*layer)
        return run(Layer(*layer), blocks, rows, None, chunk)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        blocks, rows, chunk = ctx.plan
        layer = Layer(*ctx.saved_tensors)
        gradients = run(layer, blocks, rows, slope, chunk)[1]
        assert gradients is not None
        return None, None, None, *_like(gradients, layer)


class SummedLoss(torch.autograd.Function):
    """sum(scale * divergence), and the divergences: gradients are computed along with it, from the same logits."""

    @staticmethod
    def forward(ctx: Any, blocks: Any, rows: Rows, chunk: int | None, scale: Tensor, *layer: Any) -> Any:
        derive = any(tensor is not None and tensor.requires_grad for tensor in layer)
        values, gradients = run(Layer(*layer), blocks, rows, scale if derive else None, chunk)
        if gradients is not None:
            ctx.save_for_backward(*_like(gradients, Layer(*layer)))
        ctx.mark_non_differentiable(values)
        return (values * scale.to(values.dtype)).sum(), values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Any) -> Any:
        saved = ctx.saved_tensors
        if slope.device.type != "cpu" or slope != 1:  # on an accelerator a look would wait; on a CPU a copy costs more
            saved = tuple(None if tensor is None else tensor * slope.to(tensor.dtype) for tensor in saved)
        return None, None, None, None, *saved


def _like(gradients: Gradients, layer: Layer) -> tuple[Tensor | None, ...]:
    pairs = zip(gradients, layer, strict=True)
    return tuple(None if g is None or p is None else g.to(p.dtype) for g, p in pairs)
