"""Training loss: the bound, with other weights and with losses on more edges of a hierarchy."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.paces import Draw
from ddlib.parameterization.logits import Parameterization, cavity_logits
from ddlib.processes import ForwardProcess, unsqueeze_times
from ddlib.processes.base import check_process
from ddlib.times import TimeDensity
from ddlib.times.base import sound
from ddlib.typing import Logits, PaddingMask, PerToken, Times, Tokens
from ddlib.utils.validation import check_mask, check_number, check_padding, require, visible
from ddlib.weightings import Weighting, weighted

EdgeWeights = Sequence[float] | None
MODES = ("standard", "hard", "edges")


def check_mode(process: ForwardProcess, mode: str, edge_weights: EdgeWeights = None) -> None:
    """Raise ValueError for an unknown mode or bad edge weights, TypeError for a mode that the
    process lacks.
    """
    require(mode in MODES, f"mode is {mode!r}, must be one of {', '.join(map(repr, MODES))}")
    if mode not in process.modes:
        listed = ", ".join(map(repr, process.modes))
        raise TypeError(
            f"mode is {mode!r}, which {type(process).__name__} does not have, must be {listed}"
        )
    if edge_weights is None:
        return
    require(
        mode == "edges",
        f"edge_weights is {edge_weights}, mode {mode!r}: only mode='edges' has them",
    )
    depth = len(process.levels) - 1
    if isinstance(edge_weights, str) or not isinstance(edge_weights, Sequence):
        raise TypeError(f"edge_weights is {edge_weights!r}, must be {depth} numbers, one per edge")
    require(
        len(edge_weights) == depth,
        f"edge_weights has {len(edge_weights)} entries, must have {depth}: one per edge, that "
        "above the tokens first",
    )
    found = [
        check_number(f"edge_weights[{i}]", v, 0, 1e6, "in [0, 1e6]")
        for i, v in enumerate(edge_weights)
    ]
    require(
        any(found),
        f"edge_weights is {edge_weights}, must hold one that is not 0: nothing would be learned",
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
    mode: str = "standard"
    edge_weights: EdgeWeights = None
    parameterization: Parameterization = "cavity"

    def check(self, process: ForwardProcess) -> None:
        """Raise TypeError or ValueError unless the process has the mode and the weighting supports
        it.
        """
        check_mode(process, self.mode, self.edge_weights)
        check_weighting(process, self.weighting)

    def per_token(
        self, process: ForwardProcess, logits: Logits, x: Tokens, z: Tokens, t: Times
    ) -> PerToken:
        """Compute the loss of every token, (B, L) nats, from the logits of the network."""
        given = cavity_logits(process, logits, z, t, self.parameterization)
        if self.mode == "edges":
            weight, divergence = process.edges_weighted_divergence(
                given, x, z, t, self.edge_weights
            )
        elif self.mode == "hard":
            weight, divergence = process.hard_weighted_divergence(given, x, z, t)
        elif self.weighting is None or self.weighting.bound:
            return process.integrand(given, x, z, t)
        else:
            weight, divergence = process.integrand_parts(given, x, z, t)
        weight = weighted(self.weighting, process, weight, x, z, t)
        return (weight.to(divergence.dtype) * divergence).to(given.dtype)


def unpacked(
    t: Times | Draw, density: TimeDensity | None, measure: Tensor | None
) -> tuple[Times, TimeDensity | None, Tensor | None]:
    """Return the times of a draw, with ``density`` and ``measure`` as passed or, for a ``Draw``,
    with its measure.

    Raises:
        ValueError: a ``Draw`` together with a density or a measure.
    """
    if not isinstance(t, Draw):
        return t, density, measure
    both = density is None and measure is None
    require(
        both,
        "t is a Draw, which contains its measure: density and measure must not be given with it",
    )
    return t.t, None, t.measure


def weights_of(t: Times, density: TimeDensity | None, measure: Tensor | None) -> Tensor | None:
    """Return the weight of each draw of a time, broadcast against tokens (B, L).

    None where all are equal.

    Raises:
        TypeError: a density that is not one, a measure that is not a tensor of numbers.
        ValueError: a bad density, both of them, or a measure that is negative, not finite or of
            another shape than ``t``.
    """
    density = None if density is None else sound(density)
    if measure is None:
        return None if density is None else unsqueeze_times(density.weight(t))
    require(
        density is None,
        f"density is {density!r} and measure is given, only one may be given: the measure "
        "contains the density",
    )
    if not isinstance(measure, Tensor) or measure.is_complex() or measure.dtype == torch.bool:
        got = measure.dtype if isinstance(measure, Tensor) else type(measure).__name__
        raise TypeError(
            f"measure has type {got}, must be a tensor of numbers of the shape of t, or None"
        )
    require(
        measure.shape == t.shape,
        f"measure has shape {tuple(measure.shape)}, must be that of t, {tuple(t.shape)}",
    )
    if visible(measure):
        bad = ~((measure >= 0) & measure.isfinite())
        if bool(bad.any()):
            raise ValueError(
                f"measure holds {measure[bad][0].item():g}, must be finite and at least 0"
            )
    return unsqueeze_times(measure)


def training_loss(
    process: ForwardProcess,
    logits: Logits,
    x: Tokens,
    z: Tokens,
    t: Times | Draw,
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
) -> Tensor:
    """Compute the training loss in nats per token.

    ``nelbo`` with other weights, more edges, and a padding mask.

    With the defaults it is the mean of ``nelbo`` over the tokens inside the mask. For evaluation
    use ``nelbo`` or ``bound``, which change no weight.

    Args:
        process: the forward process.
        logits: (B, L, V) over tokens, or (B, L, S - 1) over states for child logits.
        x: (B, L) clean tokens.
        z: (B, L) noisy states.
        t: (B,) times, or (B, L), one for each position; or a ``paces.Draw``, i.e. times with the
            weight of each, by which the loss is multiplied: the result of ``Pace.draw``.
        weighting: function of the weight before it multiplies the divergence, from
            ``ddlib.weightings``; by default the weight is that of the bound. The papers clip at 2
            or 10, ``Clip(2.0)``.
        mode: target of the loss at states above the first level, one of ``process.modes``.
            "standard": the child. "edges": every edge between the state and the token. "hard": the
            token, the paper's hard mode.
        mask: (B, L) bool, True at real tokens, False at padding. Positions outside count neither in
            the mean nor in the gradient; None if all tokens are real.
        count_padding: True if positions outside the mask count too, as in the training of GIDD and
            the HDLM paper.
        edge_weights: factors of mode "edges", one per edge, the edge above the tokens first: the
            loss at a state of level i is its weight times the sum over the edges below of factor
            times divergence. By default every edge has at each time the weight that it has in the
            bound, shared among the states that have a loss on it. See
            ``Hierarchical.edges_weighted_divergence`` for the cases in which this is a bound.
        parameterization: meaning of the logits, as in ``nelbo``.
        density: density from which the times were drawn, in place of a ``Draw``: each loss is
            multiplied by ``density.weight(t)``, so that the mean is that of uniform times. None for
            uniform times, or to train more at times that are drawn more often.
        measure: weights in place of a ``Draw``, those of ``Draw.measure``; (B,) or (B, L). They
            include the density.
        reduction: "mean" over tokens, or "none" for (B, L).

    Raises:
        TypeError, ValueError: as ``nelbo``; a bad weighting, mode, mask, edge weight, density,
            measure or reduction.
    """
    options = LossOptions(weighting, mode, edge_weights, parameterization)
    check_process(process)
    options.check(process)
    t, density, measure = unpacked(t, density, measure)
    require(reduction in ("mean", "none"), f"reduction is {reduction!r}, must be 'mean' or 'none'")
    check_padding(x, mask)
    kept = None if count_padding else mask
    process.check_noised(x, z, t, kept)
    loss = options.per_token(process, logits, x, z, t)
    counts = weights_of(t, density, measure)
    if counts is not None:
        loss = loss * counts.to(loss.dtype)
    if reduction == "none":
        return loss if kept is None else torch.where(kept, loss, 0.0)
    return mean_per_token(loss, kept)


def mean_per_token(values: PerToken, mask: PaddingMask | None = None) -> Float[Tensor, ""]:
    """Compute the mean over all tokens, or over those where ``mask`` is True; differentiable."""
    if mask is None:
        return values.mean()
    check_mask("mask", mask, values.shape)
    return torch.where(mask, values, 0.0).sum() / mask.sum()
