"""Training loss: the bound, with other weights and with losses on more edges of a hierarchy."""

from jaxtyping import Float
from torch import Tensor

from ddlib.objective.options import LossOptions, Mode
from ddlib.objective.outputs import LossInputs, Output, as_output
from ddlib.paces import Draw
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess
from ddlib.typing import Logits, PaddingMask, PerToken, Times, Tokens
from ddlib.utils.validation import require
from ddlib.weightings import Weighting


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
            weight of each, by which the loss is multiplied: the result of ``Pace.draw``, or
            ``Draw(t, density.weight(t))`` for times that were drawn from a density.
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
        parameterization: meaning of the logits, as in ``nelbo``.
        reduction: "mean" over tokens, "sum", or "none" for (B, L).

    Raises:
        TypeError, ValueError: as ``nelbo``; a bad weighting, mode, mask, weight of a draw or
            reduction.
    """
    rule = "must be 'mean', 'sum' or 'none'"
    require(reduction in ("mean", "sum", "none"), f"reduction is {reduction!r}, {rule}")
    options = LossOptions(weighting, mode, parameterization)
    inputs = LossInputs.of(process, x, z, t, options, mask)
    if reduction == "none":
        return as_output(output).losses(inputs)
    if reduction == "mean":
        return as_output(output).mean(inputs)
    return as_output(output).summed(inputs, 1.0)[0]


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
    parameterization: Parameterization = "cavity",
) -> tuple[Float[Tensor, ""], PerToken]:
    """Compute the sum of ``scale`` times ``training_loss``, and the loss of each token, (B, L).

    For training engines. A factor that is known before costs nothing with ``ddlib.Hidden``, whose
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
        parameterization: see there.

    Returns:
        The sum, and the loss of each token in nats, not multiplied by ``scale``, without gradient.

    Raises:
        TypeError, ValueError: as ``training_loss``.
    """
    options = LossOptions(weighting, mode, parameterization)
    inputs = LossInputs.of(process, x, z, t, options, mask)
    return as_output(output).summed(inputs, scale)
