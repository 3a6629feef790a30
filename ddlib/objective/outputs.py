"""Outputs of a network from which losses are computed: logits, or states in front of them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.objective.options import LossOptions
from ddlib.paces import Draw
from ddlib.processes import ForwardProcess, unsqueeze_times
from ddlib.processes.base import check_process
from ddlib.typing import Logits, PaddingMask, PerToken, Times, Tokens
from ddlib.utils.validation import check_mask, check_padding, require, visible


@dataclass(frozen=True)
class LossInputs:
    """Checked inputs of a loss, except for the network's output."""

    process: ForwardProcess
    x: Tokens
    z: Tokens
    t: Times
    options: LossOptions
    mask: PaddingMask | None = None
    weight: Tensor | None = None
    """Importance weight of each draw, which broadcasts with (B, L); None where all are 1."""

    @classmethod
    def of(
        cls,
        process: ForwardProcess,
        x: Tokens,
        z: Tokens,
        t: Times | Draw,
        options: LossOptions,
        mask: PaddingMask | None,
    ) -> "LossInputs":
        """Check the inputs and unpack a draw.

        Raises:
            TypeError, ValueError: as ``training_loss``.
        """
        check_process(process)
        options.check(process)
        check_padding(x, mask)
        times, weight = weighted_times(t)
        return cls(process, x, z, times, options, mask, weight)


def weighted_times(t: Times | Draw) -> tuple[Times, Tensor | None]:
    """Return times, and the weight of each draw, which broadcasts with tokens (B, L).

    None where all weights are 1.

    Raises:
        TypeError: weights that are not a tensor of numbers.
        ValueError: weights that are negative, not finite or of another shape than the times.
    """
    if not isinstance(t, Draw):
        return t, None
    measure = t.measure
    if not isinstance(measure, Tensor) or measure.is_complex() or measure.dtype == torch.bool:
        got = measure.dtype if isinstance(measure, Tensor) else type(measure).__name__
        raise TypeError(f"measure has type {got}, must be a tensor of numbers of the shape of t")
    require(
        measure.shape == t.t.shape,
        f"measure has shape {tuple(measure.shape)}, must be that of t, {tuple(t.t.shape)}",
    )
    if visible(measure):
        bad = ~((measure >= 0) & measure.isfinite())
        if bool(bad.any()):
            raise ValueError(
                f"measure holds {measure[bad][0].item():g}, must be finite and at least 0"
            )
    return t.t, unsqueeze_times(measure)


class Output(ABC):
    """Output of a network, of which a loss may need only a part."""

    @abstractmethod
    def losses(self, inputs: LossInputs) -> PerToken:
        """Compute the weighted loss of each token, (B, L) nats; 0 outside the mask."""

    @abstractmethod
    def mean(self, inputs: LossInputs) -> Float[Tensor, ""]:
        """Compute the mean of ``losses`` over the tokens inside the mask."""

    @abstractmethod
    def summed(
        self, inputs: LossInputs, scale: float | Tensor
    ) -> tuple[Float[Tensor, ""], PerToken]:
        """Compute the sum of ``scale`` times ``losses``, and ``losses`` without gradient."""


@dataclass(frozen=True)
class Computed(Output):
    """Logits that are computed already."""

    logits: Logits

    def losses(self, inputs: LossInputs) -> PerToken:
        loss = self._weighted(inputs)
        return loss if inputs.mask is None else torch.where(inputs.mask, loss, 0.0)

    def mean(self, inputs: LossInputs) -> Float[Tensor, ""]:
        return mean_per_token(self._weighted(inputs), inputs.mask)

    def summed(
        self, inputs: LossInputs, scale: float | Tensor
    ) -> tuple[Float[Tensor, ""], PerToken]:
        losses = self.losses(inputs)
        return (losses * scale).sum(), losses.detach()

    def _weighted(self, inputs: LossInputs) -> PerToken:
        process = inputs.process
        x = inputs.x
        z = inputs.z
        t = inputs.t
        process.check_noised(x, z, t, inputs.mask)
        loss = inputs.options.per_token(process, self.logits, x, z, t)
        return loss if inputs.weight is None else loss * inputs.weight.to(loss.dtype)


def as_output(output: Logits | Output) -> Output:
    """Return the output of a network as an object."""
    return output if isinstance(output, Output) else Computed(output)


def mean_per_token(values: PerToken, mask: PaddingMask | None = None) -> Float[Tensor, ""]:
    """Compute the mean over all tokens, or over those where ``mask`` is True; differentiable."""
    if mask is None:
        return values.mean()
    check_mask("mask", mask, values.shape)
    return torch.where(mask, values, 0.0).sum() / mask.sum()
