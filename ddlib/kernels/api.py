"""``nelbo`` and ``training_loss`` computed from hidden states, without storing all logits."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.kernels.dispatch import plan
from ddlib.kernels.fused import Layer, PerTokenLoss, SummedLoss
from ddlib.kernels.tile import Block, Observer, Rows
from ddlib.objective.training import LossOptions, unpacked, weights_of
from ddlib.paces import Draw
from ddlib.parameterization.logits import Parameterization, TokenLogits, layout_of
from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import ForwardProcess
from ddlib.times import TimeDensity
from ddlib.typing import PaddingMask, PerToken, Times, Tokens
from ddlib.utils.compilation import uncompiled
from ddlib.utils.validation import check_count, check_devices, check_padding, check_shape, require
from ddlib.weightings import Weighting


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
    """Compute ``nelbo(process, hidden @ weight.T + bias, x, z, t)`` from only the logits it depends
    on.

    "Linear" refers to the output layer, not to the bound: hidden states and the layer's matrix take
    the place of logits.

    In a plain hierarchy, a position whose state is a token needs no logits, one in a cluster needs
    those of the cluster's tokens, and only masked positions need all of them (with gamma = 1 about
    a quarter of the work). With child logits, a position needs only the logits of its state's
    children. In all other cases all logits are computed, in chunks.

    Args:
        process: the forward process.
        hidden: (B, L, D) inputs of the output layer.
        weight: (V, D) matrix of the output layer, tokens in the tokenizer's order; for child logits
            (S - 1, D), a row for every state but the root, or rows as given by ``Children.rows``.
        x: (B, L) clean tokens.
        z: (B, L) noisy states.
        t: (B,) times, or (B, L), one for each position.
        bias: (V,) bias of the output layer; one entry per row of ``weight``.
        parameterization: meaning of the logits, as in ``nelbo``.
        chunk: number of logits in memory at a time; default 2^23 on a CPU, 2^27 elsewhere.

    Returns:
        (B, L) nats per token, differentiable once with respect to hidden, weight and bias. The
        backward pass recomputes the logits; ``linear_training_loss`` does not, if the loss is
        reduced to a scalar.

    Raises:
        TypeError, ValueError: as ``nelbo``; shapes that do not match. NaN in ``hidden`` or
            ``weight`` raises no error: as the logits are not checked, it gives NaN.
    """
    options = LossOptions(parameterization=parameterization)
    rows, layer = _batch(process, hidden, weight, x, z, t, bias, chunk, parameterization)
    return _per_token(process, rows, layer, options, chunk).view_as(x)


@uncompiled
def linear_training_loss(
    process: ForwardProcess,
    hidden: Float[Tensor, "B L D"],
    weight: Float[Tensor, "K D"],
    x: Tokens,
    z: Tokens,
    t: Times | Draw,
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
    observe: Observer | None = None,
) -> Tensor | tuple[Tensor, PerToken]:
    """Compute ``training_loss`` of ``hidden @ weight.T + bias`` from only the logits it depends on.

    "Linear" refers to the output layer, not to the loss.

    If the loss is reduced to a scalar, its gradients are computed in the forward pass, from the
    same logits. Arguments as in ``training_loss`` and ``linear_nelbo``; reduction is "mean", "sum"
    or "none". The loss is multiplied by ``scale``; this costs nothing here, whereas a later
    multiplication copies the gradient of the matrix. With "sum", ``scale`` may be a tensor (B * L,)
    with one factor per token. With ``per_token`` the loss of every token is returned too, detached
    and not multiplied by ``scale``.

    ``observe`` reads the logits that the loss depends on, without a second product or softmax: it
    is called with the columns of a block (None for all), the indices of rows in the flattened
    batch, and their probabilities over these columns, which it must not change. It is not called
    for rows that other kernels compute: those of child logits, and on CUDA.

    In the mode "edges", child logits need one family of siblings for each edge below the state of a
    position; token logits need those of the tokens under the state, as in the standard mode. On
    CUDA the kernels of ``ddlib.kernels.gpu`` support only states of the first level in this mode,
    and for the others the host waits for the device.

    Raises:
        TypeError, ValueError: as ``training_loss``; shapes that do not match.
    """
    require(
        reduction in ("mean", "sum", "none"),
        f"reduction is {reduction!r}, must be 'mean', 'sum' or 'none'",
    )
    options = LossOptions(weighting, mode, edge_weights, parameterization)
    options.check(process)
    t, density, measure = unpacked(t, density, measure)
    check_padding(x, mask)
    rows, layer = _batch(
        process,
        hidden,
        weight,
        x,
        z,
        t,
        bias,
        chunk,
        parameterization,
        None if count_padding else mask,
    )
    kept = torch.ones_like(x, dtype=torch.bool) if mask is None or count_padding else mask
    counts = weights_of(t, density, measure)
    counts = (
        torch.ones_like(rows.t)
        if counts is None
        else counts.to(rows.t.dtype).expand_as(x).flatten()
    )
    if reduction == "none":
        values = _per_token(process, rows, layer, options, chunk)
        losses = torch.where(kept, (values * counts.to(values.dtype)).view_as(x), 0.0)
        return (losses * scale, losses.detach()) if per_token else losses * scale
    blocks, weight = plan(process, rows, options, layer.hidden.dtype)
    if observe is not None:
        blocks = [
            replace(block, observe=observe) if isinstance(block, Block) else block
            for block in blocks
        ]
    weight = torch.where(kept.flatten(), weight * counts, 0.0)
    factor = weight * scale / kept.sum() if reduction == "mean" else weight * scale
    result, values = SummedLoss.apply(blocks, rows, chunk, factor, *layer)
    return (result, (values * weight.to(values.dtype)).view_as(x)) if per_token else result


def _per_token(
    process: ForwardProcess, rows: Rows, layer: Layer, options: LossOptions, chunk: int | None
) -> Tensor:
    blocks, scale = plan(process, rows, options, layer.hidden.dtype)
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
    mask: PaddingMask | None = None,
) -> tuple[Rows, Layer]:
    layout = layout_of(process, parameterization)
    process.check_noised(x, z, t, mask)
    check_devices(x=x, hidden=hidden, weight=weight, bias=bias)
    if chunk is not None:
        check_count("chunk", chunk)
    require(hidden.ndim == 3, f"hidden has shape {tuple(hidden.shape)}, must be (B, L, D)")
    dim = hidden.shape[-1]
    check_shape("hidden", hidden, (*x.shape, dim), f"(B, L, D) = {(*x.shape, dim)}")
    _check_layer(process, layout, weight, bias, dim)
    rows = Rows.of(x, z, t)
    layer = Layer(hidden.flatten(0, 1), weight, bias)
    if (
        not torch.is_grad_enabled()
    ):  # autograd.Function does not see the grad mode and would compute unused gradients
        layer = layer.each(Tensor.detach)
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):  # cast once, not in every chunk
        half = torch.get_autocast_dtype(kind)
        return rows, layer.each(lambda tensor: tensor.to(half))
    return rows, layer


def _check_layer(
    process: ForwardProcess,
    layout: Children | TokenLogits,
    weight: Tensor,
    bias: Tensor | None,
    dim: int,
) -> None:
    size = process.vocab_size
    rule = "(V, D)"
    seems = ""
    if isinstance(layout, Children):
        size = layout.columns
        rule = "(S - 1, D), a row for every state except the root,"
        if layout.rows is not None:
            size = max(layout.num_rows, len(weight))
            rule = "(rows, D)"
        if len(weight) == process.vocab_size != size:
            seems = "; V rows are logits of tokens, parameterization='cavity'"
    check_shape("weight", weight, (size, dim), f"{rule} = ({size}, {dim}){seems}")
    if bias is not None:
        check_shape("bias", bias, (size,), f"({rule[1:].split(',')[0]},) = ({size},)")
