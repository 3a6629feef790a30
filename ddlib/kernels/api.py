"""``nelbo`` and ``training_loss`` from the hidden states, without ever storing the logits of all tokens."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.kernels.dispatch import Asked, plan
from ddlib.kernels.fused import Layer, PerTokenLoss, SummedLoss
from ddlib.kernels.tile import Rows
from ddlib.objective.nelbo import check_noised
from ddlib.objective.training import check_mode, check_weighting, drawn
from ddlib.parameterization.logits import Parameterization, tree_of
from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import ForwardProcess, beside
from ddlib.times import TimeDensity
from ddlib.typing import PaddingMask, PerToken, Times, Tokens
from ddlib.utils.validation import check_count, check_devices, check_mask, check_shape, require
from ddlib.weightings import Weighting

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Keeps ``torch.compile`` out, at one graph break: which rows need which columns is not known beforehand."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # not before: it would import the compiler along with ddlib
            return torch.compiler.disable(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call


@uncompiled
def linear_nelbo(
    process: ForwardProcess,
    hidden: Float[Tensor, "B L D"],
    weight: Float[Tensor, "K D"],
    x: Tokens,
    z: Tokens,
    t: Times,
    bias: Float[Tensor, "K"] | None = None,
    *,
    parameterization: Parameterization = "cavity",
    chunk: int | None = None,
) -> PerToken:
    """``nelbo(process, hidden @ weight.T + bias, x, z, t)``, computing only the logits it depends on.

    The output *layer* is linear, not the bound: its matrix and what it reads stand in place of logits.

    In a plain hierarchy a token needs no logit, a cluster those of its own tokens, only the mask all of them (with
    gamma = 1 about a quarter of the work). Child logits are asked for by family: a token needs those of its state's
    children alone. Elsewhere all logits are computed, a chunk at a time.

    Args:
        process: the forward process.
        hidden: (B, L, D) what the output layer reads.
        weight: (V, D) its matrix, tokens in the tokenizer's order; for child logits (S - 1, D), a row for every
            state but the root, or as ``Children.rows`` says.
        x: (B, L) clean tokens.
        z: (B, L) noisy states.
        t: (B,) times, or (B, L), one for each position.
        bias: (V,) of the output layer, or as many as ``weight`` has rows.
        parameterization: what the logits mean, as in ``nelbo``.
        chunk: number of logits held at a time; default 2^23 on a CPU, 2^27 elsewhere.

    Returns:
        (B, L) nats per token, differentiable once by hidden, weight and bias; the backward pass computes the logits
        anew. For one number to minimise ``linear_training_loss`` needs no second time.

    Raises:
        TypeError, ValueError: as ``nelbo``; shapes that do not fit.
    """
    asked = Asked(parameterization=parameterization)
    rows, layer = _batch(process, hidden, weight, x, z, t, bias, chunk, parameterization)
    return _per_token(process, rows, layer, asked, chunk).view_as(x)


@uncompiled
def linear_training_loss(
    process: ForwardProcess,
    hidden: Float[Tensor, "B L D"],
    weight: Float[Tensor, "K D"],
    x: Tokens,
    z: Tokens,
    t: Times,
    bias: Float[Tensor, "K"] | None = None,
    weighting: Weighting | None = None,
    mode: str = "standard",
    *,
    mask: PaddingMask | None = None,
    count_padding: bool = False,
    edge_weights: Sequence[float] | None = None,
    parameterization: Parameterization = "cavity",
    density: TimeDensity | None = None,
    measure: Tensor | None = None,
    reduction: str = "mean",
    scale: float | Tensor = 1.0,
    chunk: int | None = None,
    per_token: bool = False,
) -> Tensor | tuple[Tensor, PerToken]:
    """``training_loss`` of ``hidden @ weight.T + bias``, computing only the logits it depends on.

    The output *layer* is linear, not the loss.

    Reduced to one number, its gradients are computed in the forward pass, from the same logits. Arguments as
    ``training_loss`` and ``linear_nelbo``; reduction is "mean", "sum" or "none". The number is multiplied by ``scale``:
    here it costs nothing, afterwards a copy of the matrix's gradient. With "sum", ``scale`` may hold a factor for every
    token, (B L,). With ``per_token`` the loss of every token, to be looked at and not differentiated, is returned too;
    ``scale`` does not touch it.

    In the mode "edges" a token with child logits needs one family for each edge below it; with logits of tokens, above
    the first level all tokens. On CUDA it runs without the kernels of ``ddlib.kernels.gpu``, and the host waits.

    Raises:
        TypeError, ValueError: as ``training_loss``; shapes that do not fit.
    """
    require(reduction in ("mean", "sum", "none"), f"reduction is {reduction!r}, must be 'mean', 'sum' or 'none'")
    check_mode(process, mode, edge_weights)
    check_weighting(process, weighting)
    rows, layer = _batch(process, hidden, weight, x, z, t, bias, chunk, parameterization)
    if mask is not None:
        check_devices(x=x, mask=mask)
        check_mask("mask", mask, x.shape)
    asked = Asked(weighting, mode, edge_weights, parameterization)
    kept = torch.ones_like(x, dtype=torch.bool) if mask is None or count_padding else mask
    counts = drawn(t, density, measure)
    counts = torch.ones_like(rows.t) if counts is None else counts.to(rows.t.dtype).expand_as(x).flatten()
    if reduction == "none":
        values = _per_token(process, rows, layer, asked, chunk)
        losses = torch.where(kept, (values * counts.to(values.dtype)).view_as(x), 0.0)
        return (losses * scale, losses.detach()) if per_token else losses * scale
    blocks, weight = plan(process, rows, asked, layer.hidden.dtype)
    weight = torch.where(kept.flatten(), weight * counts, 0.0)
    factor = weight * scale / kept.sum() if reduction == "mean" else weight * scale
    result, values = SummedLoss.apply(blocks, rows, chunk, factor, *layer)
    return (result, (values * weight.to(values.dtype)).view_as(x)) if per_token else result


def _per_token(process: ForwardProcess, rows: Rows, layer: Layer, asked: Asked, chunk: int | None) -> Tensor:
    blocks, scale = plan(process, rows, asked, layer.hidden.dtype)
    values: Tensor = PerTokenLoss.apply(blocks, rows, chunk, *layer)
    return values * scale.to(values.dtype)


def _batch(
    process: ForwardProcess,
    hidden: Tensor,
    weight: Tensor,
    x: Tokens,
    z: Tokens,
    t: Times,
    bias: Tensor | None,
    chunk: int | None,
    parameterization: Parameterization,
) -> tuple[Rows, Layer]:
    children = tree_of(process, parameterization)
    check_noised(process, x, z, t)
    check_devices(x=x, hidden=hidden, weight=weight, bias=bias)
    if chunk is not None:
        check_count("chunk", chunk)
    require(hidden.ndim == 3, f"hidden has shape {tuple(hidden.shape)}, must be (B, L, D)")
    dim = hidden.shape[-1]
    check_shape("hidden", hidden, (*x.shape, dim), f"(B, L, D) = {(*x.shape, dim)}")
    _check_layer(process, children, weight, bias, dim)
    rows = Rows(x.flatten(), z.flatten(), beside(t.to(torch.float64)).expand_as(x).flatten())
    layer = Layer(hidden.flatten(0, 1), weight, bias)
    if not torch.is_grad_enabled():  # an autograd.Function is not told, and would compute gradients for nobody
        layer = layer.each(Tensor.detach)
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):  # once, not for every chunk
        half = torch.get_autocast_dtype(kind)
        return rows, layer.each(lambda tensor: tensor.to(half))
    return rows, layer


def _check_layer(
    process: ForwardProcess, children: Children | None, weight: Tensor, bias: Tensor | None, dim: int
) -> None:
    size, rule = process.vocab_size, "(V, D)"
    if children is not None:
        size, rule = children.columns, "(S - 1, D), a row for every state but the root,"
        if children.rows is not None:
            size, rule = max(children.num_rows, len(weight)), "(rows, D)"
    seems = ""
    if children is not None and len(weight) == process.vocab_size != size:
        seems = "; V rows are logits of words, parameterization='cavity'"
    check_shape("weight", weight, (size, dim), f"{rule} = ({size}, {dim}){seems}")
    if bias is not None:
        check_shape("bias", bias, (size,), f"({rule[1:].split(',')[0]},) = ({size},)")
