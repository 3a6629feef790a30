"""The network as one module: what is compiled, copied and sharded, and how a batch is its input."""

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import ddlib as dd
from ddlib.typing import Denoiser, SplitDenoiser, Times, implements
from recipes.engine.objectives.noising import NoisyBatch
from recipes.metrics.conditioned import takes_labels

Loss = Callable[[NoisyBatch, "Network", Tensor], tuple[Float[Tensor, ""], Float[Tensor, "B L"]]]
"""``Objective.loss``."""


class Network(nn.Module):
    """Network of a run; a call computes a loss.

    Args:
        model: the network.
        parameterization: meaning of its output, if it does not state one.
        half: whether matrix products are in bfloat16.
    """

    def __init__(
        self, model: nn.Module, parameterization: str = "cavity", half: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.half = half
        self._parameterization = parameterization

    def forward(
        self, loss: Loss, noisy: NoisyBatch, scale: Tensor
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B L"]]:
        """Return ``Objective.loss``: within a call, before which DDP and FSDP prepare the
        weights.
        """
        return loss(noisy, self, scale)

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return a context in which matrix products are in bfloat16, if those of the run are."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.half)

    def frozen(self) -> Self:
        """Return a copy of the network in evaluation mode, whose weights take no gradient."""
        return copy.deepcopy(self).eval().requires_grad_(False)

    @property
    def split(self) -> bool:
        """Whether the network has features and an output layer."""
        return implements(self.model, SplitDenoiser)

    def evaluate(self, noisy: NoisyBatch, **options: Any) -> Tensor:
        """Return the features of a split network for a noisy batch, the logits of any other."""
        return self.call(self.model.features if self.split else self.model, noisy, **options)

    def output(self, raw: Tensor, **options: Any) -> Tensor | dd.Hidden:
        """Return a result of ``evaluate`` as losses take it.

        With the output layer in the loss only the logits that it depends on are computed.

        Args:
            raw: the result.
            options: further fields of ``ddlib.Hidden``.
        """
        if not self.split:
            return raw
        return dd.Hidden(raw, *dd.Hidden.layer(self.model, self.parameterization), **options)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the features as the output layer multiplies them."""
        return torch.bfloat16 if self.half else next(self.parameters()).dtype

    def lost(self, raw: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return NaN with NaN gradients, in place of a loss, if an output is not finite.

        None if it is finite, and on accelerators, where nothing waits for its values.
        """
        if raw.device.type != "cpu":
            return None
        # a logit of minus infinity says that a token is impossible
        sound = raw.isfinite() if self.split else raw < torch.inf
        if bool(sound.all()):
            return None
        # ddlib would refuse them here, as it does not on accelerators; but every rank must
        # reach the exchange of gradients, after which the loop stops
        lost = torch.stack([p.sum() for p in self.parameters()]).sum() * torch.nan
        return lost, torch.where(sound.all(-1), 0.0, lost.detach())

    def predict(
        self, z: Int[Tensor, "B L"], t: Times, *packing: Tensor, **options: Any
    ) -> Float[Tensor, "B L K"]:
        """Return the network's logits; a separate method, before which FSDP gathers the weights."""
        return self.model(z, t, *packing, **options)

    @torch.no_grad()
    def answer(self, noisy: NoisyBatch) -> Float[Tensor, "B L K"]:
        """Return the network's logits for a noisy batch, without gradient."""
        with self.autocast(noisy.z.device):
            return self.call(self.predict, noisy)

    @property
    def denoiser(self) -> Denoiser:
        """The network as a denoiser of ``ddlib``."""
        from recipes.model_io import as_function  # on demand: help of a recipe does without it

        return as_function(self.model, self.half, self.predict)

    @cached_property
    def parameterization(self) -> str | dd.Children:
        """Parameterization of the network's output.

        Determined once the network is on its device.
        """
        return dd.Children.meaning(self.model, self._parameterization)

    def call(self, function: Callable[..., Any], noisy: NoisyBatch, **options: Any) -> Any:
        """Call the network, or a part of it; the output for packed rows is that of one sequence for
        every token.
        """
        if noisy.at_once:
            options["clean"] = noisy.x

        if noisy.labels is not None and takes_labels(self.model):
            # the padding of a packed row counts in no loss
            options["label"] = noisy.labels.clamp_min(0)
        z = noisy.z.clone()  # a network may write into its input
        if noisy.cu_seqlens is None:
            return function(z, noisy.t, **options)
        row = function(z.view(1, -1), noisy.piece_t, noisy.cu_seqlens, **options)
        return row.transpose(0, 1)
