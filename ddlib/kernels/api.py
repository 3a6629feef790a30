"""Hidden states with an output layer: losses that compute only the logits they depend on."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.kernels.dispatch import LossPlan, plan
from ddlib.kernels.fused import (
    FlatBatch,
    Layer,
    Observer,
    PerTokenLoss,
    SummedLoss,
)
from ddlib.kernels.planned import PlannedLoss
from ddlib.objective.training import LossInputs, Output
from ddlib.parameterization.logits import (
    Parameterization,
    check_layer,
    layout_of,
)
from ddlib.parameterization.tree_softmax import Children, has_tree
from ddlib.typing import PerToken, SplitDenoiser
from ddlib.utils.compilation import disable_compile
from ddlib.utils.validation import check_count, check_devices, check_shape, require


@dataclass(frozen=True, eq=False)
class Hidden(Output):
    """Logits ``hidden @ weight.T + bias`` of ``nelbo`` and ``training_loss``, not computed yet.

    In a plain hierarchy, a position whose state is a token needs no logits, one in a cluster needs
    those of the cluster's tokens, and only masked positions need all of them (with gamma = 1 about
    a quarter of the work). With child logits, a position needs only the logits of its state's
    children. In all other cases all logits are computed, in chunks. In the mode "edges", child
    logits need one family of siblings for each edge below the state of a position; token logits
    need those of the tokens under the state, as in the standard mode. On CUDA the kernels of
    ``ddlib.kernels.gpu`` support only states of the first level in this mode, and for the others
    the host waits for the device.

    If the loss is reduced to a scalar, its gradients are computed in the forward pass, from the
    same logits. Otherwise the backward pass recomputes the logits, and so it does in float16, where
    gradients without the scale of the loss would be rounded to 0. The loss is differentiable once
    with respect to hidden, weight and bias. NaN in ``hidden`` or ``weight`` gives NaN, or an error
    where all logits are computed in chunks, whose position is that in the chunk.

    Example:
        >>> import ddlib as dd
        >>> process, x = dd.presets.mdlm(vocab_size=5), torch.tensor([[0, 3, 4]])
        >>> z, t = torch.tensor([[0, 5, 5]]), torch.tensor([0.5])
        >>> dd.nelbo(process, dd.Hidden(torch.ones(1, 3, 2), torch.zeros(5, 2)), x, z, t)
        tensor([[0.0000, 3.2189, 3.2189]])
    """

    hidden: Float[Tensor, "B L D"]
    """(B, L, D) inputs of the output layer."""
    weight: Float[Tensor, "K D"]
    """(V, D) matrix of the output layer, tokens in the tokenizer's order; for child logits (S - 1,
    D), a row for every state but the root, or rows as given by ``Children.rows``. For a product
    (N, D), a row for every token of every field, in the order of the fields; or (V, D), rows that
    all fields share.
    """
    bias: Float[Tensor, "K"] | None = None
    """(V,) bias of the output layer; one entry per row of ``weight``."""
    chunk: int | None = None
    """Number of logits in memory at a time; default 2^23 on a CPU, 2^27 elsewhere."""
    observe: Observer | None = None
    """Function that reads the logits that a scalar loss depends on, without a second product or
    softmax.

    It is called with the columns of a block (None for all), the indices of rows in the flattened
    batch, and their probabilities over these columns, which it must not change. It is not called
    for rows that other kernels compute: those of child logits, and on CUDA.
    """
    planned: PlannedLoss | None = None
    """What of the loss was computed before the network ran; None to compute it with the loss."""

    @staticmethod
    def layer(
        denoiser: SplitDenoiser, parameterization: Parameterization
    ) -> tuple[Float[Tensor, "K D"], Float[Tensor, "K"] | None]:
        """Return the weight and bias of a network's output layer for this parameterization.

        Their rows are in memory order if the network predicts the children of a tree and the
        parameterization has ``rows``, as ``Children.of(denoiser)`` has, and otherwise in the order
        of the tokens or states.
        """
        in_memory = isinstance(parameterization, Children) and parameterization.rows is not None
        if in_memory and has_tree(denoiser):
            return denoiser.siblings()[:2]
        return denoiser.output_weights()

    @disable_compile
    def losses(self, inputs: LossInputs) -> PerToken:
        rows, layer, dtype = self._batch(inputs)
        blocks, scale = self._plan(inputs, dtype or layer.hidden.dtype)
        values: Tensor = PerTokenLoss.apply(blocks, rows, self.chunk, dtype, *layer)
        values = values * scale.to(values.dtype)
        if inputs.weight is not None:
            values = values * inputs.weight.to(rows.t.dtype).expand_as(inputs.x).flatten().to(
                values.dtype
            )
        values = values.view_as(inputs.x)
        return values if inputs.mask is None else torch.where(inputs.mask, values, 0.0)

    @disable_compile
    def mean(self, inputs: LossInputs) -> Float[Tensor, ""]:
        count = inputs.x.numel() if inputs.mask is None else inputs.mask.sum()
        return self._sum(inputs, lambda weight: weight / count)[0]

    @disable_compile
    def total(
        self, inputs: LossInputs, scale: float | Tensor
    ) -> tuple[Float[Tensor, ""], PerToken]:
        if isinstance(scale, Tensor):
            scale = scale.expand_as(inputs.x).flatten()
        return self._sum(inputs, lambda weight: weight * scale)

    def _sum(
        self, inputs: LossInputs, factor: Callable[[Tensor], Tensor]
    ) -> tuple[Float[Tensor, ""], PerToken]:
        rows, layer, dtype = self._batch(inputs)
        blocks, weight = self._plan(inputs, dtype or layer.hidden.dtype)
        if self.observe is not None:
            blocks = [block.observed(self.observe) for block in blocks]
        if inputs.weight is not None:
            weight = weight * inputs.weight.to(rows.t.dtype).expand_as(inputs.x).flatten()
        if inputs.mask is not None:
            weight = torch.where(inputs.mask.flatten(), weight, 0.0)
        scale = factor(weight)
        if (dtype or layer.hidden.dtype) == torch.float16:
            # the gradients need the scale of the loss, which the backward pass has
            values = PerTokenLoss.apply(blocks, rows, self.chunk, dtype, *layer)
            result = (values * scale.to(values.dtype)).sum()
        else:
            result, values = SummedLoss.apply(blocks, rows, self.chunk, dtype, scale, *layer)
        return result, (values.detach() * weight.to(values.dtype)).view_as(inputs.x)

    def _plan(self, inputs: LossInputs, dtype: torch.dtype) -> LossPlan:
        if self.planned is not None and self.planned.fits(inputs, dtype):
            return self.planned.parts
        return plan(inputs.process, inputs.x, inputs.z, inputs.t, inputs.options, dtype)

    def _batch(self, inputs: LossInputs) -> tuple[FlatBatch, Layer, torch.dtype | None]:
        """Check the states and the layer, and flatten the batch.

        Returns:
            rows, layer, and the dtype of its products, None for that of its tensors.
        """
        x = inputs.x
        hidden = self.hidden
        weight = self.weight
        bias = self.bias
        layout = layout_of(inputs.process, inputs.options.parameterization)
        check_devices(x=x, hidden=hidden, weight=weight, bias=bias)
        if self.chunk is not None:
            check_count("chunk", self.chunk)
        require(hidden.ndim == 3, f"hidden has shape {tuple(hidden.shape)}, must be (B, L, D)")
        dim = hidden.shape[-1]
        check_shape("hidden", hidden, (*x.shape, dim), f"(B, L, D) = {(*x.shape, dim)}")
        check_layer(inputs.process, layout, weight, bias, dim)
        rows = FlatBatch.of(x, inputs.z, inputs.t)
        layer = Layer(hidden.flatten(0, 1), weight, bias)
        if not torch.is_grad_enabled():
            # autograd.Function does not see the grad mode and would compute unused gradients
            layer = layer.each(Tensor.detach)
        kind = hidden.device.type
        # an autocast region leaves products of float64 as they are
        wide = torch.float64 in (hidden.dtype, weight.dtype)
        casts = torch.is_autocast_enabled(kind) and not wide
        return rows, layer, torch.get_autocast_dtype(kind) if casts else None
