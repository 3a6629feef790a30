"""Training loss: the bound, with other weights and with losses on more edges of a hierarchy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.objective.given import check_held, free_positions
from ddlib.paces import Draw
from ddlib.parameterization.logits import Parameterization, cavity_logits
from ddlib.processes import ForwardProcess, unsqueeze_times
from ddlib.processes.base import Component, check_process
from ddlib.typing import GivenTokens, Logits, PaddingMask, PerToken, Times, Tokens
from ddlib.utils.validation import check_mask, check_number, due, refuse, require
from ddlib.weightings import Weighting, is_bound, loss_weights

MODES = ("standard", "hard", "edges")
Mode = str | Sequence[float]
"""One of ``MODES``, or the factors of "edges", one per edge, the edge above the tokens first."""


def check_mode(process: ForwardProcess, mode: Mode) -> None:
    """Raise ValueError for an unknown mode or bad factors of edges, TypeError for a mode that the
    process lacks.
    """
    if isinstance(mode, str):
        require(mode in MODES, f"mode is {mode!r}, must be one of {', '.join(map(repr, MODES))}")
    elif not isinstance(mode, Sequence):
        raise TypeError(
            f"mode is {mode!r}, must be one of {', '.join(map(repr, MODES))}, or a factor for each "
            "edge"
        )
    name = mode if isinstance(mode, str) else "edges"
    if name not in process.modes:
        listed = ", ".join(map(repr, process.modes))
        raise TypeError(
            f"mode is {mode!r}, which {type(process).__name__} does not have, must be {listed}"
        )
    if not isinstance(mode, str):
        for component in process.components:
            _check_factors(mode, component)


def _check_factors(factors: Sequence[float], component: Component) -> None:
    depth = len(component.process.levels) - 1
    require(
        len(factors) == depth,
        f"mode has {len(factors)} factors, must have {depth}: {component.label}one per edge, that "
        "above the tokens first",
    )
    values = [check_number(f"mode[{i}]", v, 0, 1e6, "in [0, 1e6]") for i, v in enumerate(factors)]
    require(
        any(values),
        f"mode is {factors}, must hold a factor that is not 0: nothing would be learned",
    )


def check_weighting(process: ForwardProcess, weighting: Weighting | None) -> None:
    """Raise TypeError unless ``weighting`` is a weighting or None.

    The weighting then checks the process.
    """
    if weighting is None:
        return
    if not isinstance(weighting, Weighting):
        raise TypeError(
            f"weighting is {weighting!r}, must be a ddlib.weightings.Weighting such as Clip(2.0), "
            "or None for the bound"
        )
    weighting.check(process)


@dataclass(frozen=True)
class LossOptions:
    """Options of a training loss of one token; arguments as in ``training_loss``."""

    weighting: Weighting | None = None
    mode: Mode = "standard"
    parameterization: Parameterization = "cavity"

    def check(self, process: ForwardProcess) -> None:
        """Raise TypeError or ValueError unless the process has the mode and the weighting supports
        it.
        """
        check_mode(process, self.mode)
        check_weighting(process, self.weighting)

    @property
    def name(self) -> str:
        """Name of the mode, one of ``MODES``."""
        return self.mode if isinstance(self.mode, str) else "edges"

    @property
    def edge_weights(self) -> Sequence[float] | None:
        """Factors of the edges, where they are not those of the bound."""
        return None if isinstance(self.mode, str) else self.mode

    def per_token(
        self, process: ForwardProcess, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> PerToken:
        """Compute the loss of every token, (B, L) nats, from the logits of the network."""
        cavity = cavity_logits(process, logits, z, t, self.parameterization)
        if self.name == "edges":
            weight, divergence = process.edges_weighted_divergence(
                cavity, x, z, t, self.edge_weights
            )
        elif self.name == "hard":
            weight, divergence = process.hard_weighted_divergence(cavity, x, z, t)
        elif is_bound(self.weighting):
            return process.integrand(cavity, x, z, t)
        else:
            weight, divergence = process.integrand_parts(cavity, x, z, t)
        weight = loss_weights(self.weighting, process, weight, x, z, t)
        return (weight.to(divergence.dtype) * divergence).to(cavity.dtype)


@dataclass(frozen=True)
class LossInputs:
    """Checked inputs of a loss, except for the network's output."""

    process: ForwardProcess
    x: Tokens
    z: Tokens
    t: Times
    options: LossOptions
    mask: PaddingMask | None = None
    """True at the tokens that have a loss, (B, L); None if all have."""
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
        given: GivenTokens | None,
    ) -> "LossInputs":
        """Check the inputs and unpack a draw.

        Raises:
            TypeError, ValueError: as ``training_loss``.
        """
        check_process(process)
        options.check(process)
        free = free_positions(x, mask, given)
        times, weight = split_draw(t)
        process.check_inputs(x=x, z=z, t=times)
        return cls(process, x, z, times, options, free, weight)


def check_not_drawn(t: Times) -> None:
    """Raise TypeError for a draw where times are required, without their weights."""
    if isinstance(t, Draw):
        raise TypeError("t is a Draw, must be a tensor of times; training_loss takes draws")


def split_draw(t: Times | Draw) -> tuple[Times, Tensor | None]:
    """Return times, and the weight of each draw, which broadcasts with tokens (B, L).

    None where all weights are 1.

    Raises:
        TypeError: weights that are not a tensor of numbers.
        ValueError: a draw of discrete time; weights that are negative, not finite or of another
            shape than the times.
    """
    if not isinstance(t, Draw):
        return t, None
    require(
        t.s is None,
        "t is a draw of discrete time, whose weights are those of a step, must be one of "
        "continuous time; dd.bound(steps=) is the bound in discrete time",
    )
    measure = t.measure
    if not isinstance(measure, Tensor) or measure.is_complex() or measure.dtype == torch.bool:
        got = measure.dtype if isinstance(measure, Tensor) else type(measure).__name__
        raise TypeError(f"measure has type {got}, must be a tensor of numbers of the shape of t")
    require(
        measure.shape == t.t.shape,
        f"measure has shape {tuple(measure.shape)}, must be that of t, {tuple(t.t.shape)}",
    )
    if due(measure):
        bad = ~((measure >= 0) & measure.isfinite())
        if bool(bad.any()):
            refuse(f"measure holds {measure[bad][0].item():g}, must be finite and at least 0")
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
    def total(
        self, inputs: LossInputs, scale: float | Tensor
    ) -> tuple[Float[Tensor, ""], PerToken]:
        """Compute the sum of ``scale`` times ``losses``, and ``losses`` without gradient."""


@dataclass(frozen=True)
class Computed(Output):
    """Logits that are computed already."""

    logits: Logits

    def losses(self, inputs: LossInputs) -> PerToken:
        loss = self._weigh(inputs)
        return loss if inputs.mask is None else torch.where(inputs.mask, loss, 0.0)

    def mean(self, inputs: LossInputs) -> Float[Tensor, ""]:
        return mean_per_token(self._weigh(inputs), inputs.mask)

    def total(
        self, inputs: LossInputs, scale: float | Tensor
    ) -> tuple[Float[Tensor, ""], PerToken]:
        losses = self.losses(inputs)
        return (losses * scale).sum(), losses.detach()

    def _weigh(self, inputs: LossInputs) -> PerToken:
        loss = inputs.options.per_token(inputs.process, self.logits, inputs.x, inputs.z, inputs.t)
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


def training_loss(
    process: ForwardProcess,
    output: Logits | Output,
    x: Tokens,
    z: Tokens,
    t: Times | Draw,
    weighting: Weighting | None = None,
    mode: Mode = "standard",
    *,
    mask: PaddingMask | None = None,
    given: GivenTokens | None = None,
    parameterization: Parameterization = "cavity",
    reduction: str = "mean",
) -> Tensor:
    """Compute the training loss in nats per token.

    ``nelbo`` with other weights, more edges, and a padding mask.

    With the defaults it is the mean of ``nelbo`` over the tokens inside the mask. For evaluation
    use ``nelbo`` or ``bound``, which change no weight.

    Args:
        process: the forward process.
        output: logits, (B, L, V) over tokens, or (B, L, S - 1) over states for child logits; or
            ``ddlib.Hidden``, hidden states with the output layer, of which only the logits that
            the loss depends on are computed.
        x: (B, L) clean tokens.
        z: (B, L) noisy states.
        t: (B,) times, or (B, L), one for each position; or a ``paces.Draw``, i.e. times with the
            weight of each, by which the loss is multiplied: the result of ``Pace.draw`` in
            continuous time, or ``Draw(t, density.weight(t))`` for times that were drawn from a
            density.
        weighting: function of the weight before it multiplies the divergence, from
            ``ddlib.weightings``; by default the weight is that of the bound. The papers clip at 2
            or 10, ``Clip(2.0)``.
        mode: target of the loss at states above the first level, one of ``process.modes``.
            "standard": the child. "edges": every edge between the state and the token. "hard": the
            token, the paper's hard mode. A sequence of numbers is "edges" with these factors, one
            per edge, the edge above the tokens first: the loss at a state of level i is its weight
            times the sum over the edges below of factor times divergence. With "edges" every edge
            has at each time the weight that it has in the bound, shared among the states that have
            a loss on it. See ``Hierarchical.edges_weighted_divergence`` for the cases in which this
            is a bound.
        mask: (B, L) bool, True at real tokens, False at padding. Positions outside count neither in
            the mean nor in the gradient; None if all tokens count.
        given: (B, L) bool, True at tokens of the context. Unlike padding they are seen by the
            network, as the tokens that they are: ``z`` and ``t`` are those of ``hold_given``. They
            count neither in the mean nor in the gradient. The loss is then that of p(other tokens |
            given tokens).
        parameterization: meaning of the logits, as in ``nelbo``.
        reduction: "mean" over tokens, "sum", or "none" for (B, L).

    Raises:
        TypeError, ValueError: as ``nelbo``; a bad weighting, mode, mask, weight of a draw or
            reduction; bad given tokens: at padding, everywhere, or noised in ``z``.
    """
    rule = "must be 'mean', 'sum' or 'none'"
    require(reduction in ("mean", "sum", "none"), f"reduction is {reduction!r}, {rule}")
    options = LossOptions(weighting, mode, parameterization)
    inputs = LossInputs.of(process, x, z, t, options, mask, given)
    process.check_noised(x, z, inputs.t, inputs.mask)
    check_held(process.tokens_as_states(x), z, given)
    if reduction == "none":
        return as_output(output).losses(inputs)
    if reduction == "mean":
        return as_output(output).mean(inputs)
    return as_output(output).total(inputs, 1.0)[0]


def summed_loss(
    process: ForwardProcess,
    output: Logits | Output,
    x: Tokens,
    z: Tokens,
    t: Times | Draw,
    scale: float | Tensor,
    weighting: Weighting | None = None,
    mode: Mode = "standard",
    *,
    mask: PaddingMask | None = None,
    given: GivenTokens | None = None,
    parameterization: Parameterization = "cavity",
) -> tuple[Float[Tensor, ""], PerToken]:
    """Compute the sum of ``scale`` times ``training_loss``, and the loss of each token, (B, L).

    For training engines, which draw ``z`` by ``process.sample(x, t)``: unlike ``training_loss`` it
    does not check that ``z`` can come from ``x``, whose likelihood may take longer than the loss.
    A factor that is known before costs nothing with ``ddlib.Hidden``, whose
    gradients are computed in the forward pass, while a later multiplication copies the gradient of
    the matrix.

    Args:
        process: the forward process.
        output: as in ``training_loss``, and so are all arguments but ``scale``.
        x: see there.
        z: see there.
        t: see there.
        scale: one factor, or a tensor that broadcasts with (B, L), a factor for each token.
        weighting: see there.
        mode: see there.
        mask: see there.
        given: see there; that ``z`` has these tokens is not checked.
        parameterization: see there.

    Returns:
        The sum, and the loss of each token in nats, not multiplied by ``scale``, without gradient.

    Raises:
        TypeError, ValueError: as ``training_loss``.
    """
    options = LossOptions(weighting, mode, parameterization)
    inputs = LossInputs.of(process, x, z, t, options, mask, given)
    return as_output(output).total(inputs, scale)
