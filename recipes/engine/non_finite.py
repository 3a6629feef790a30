"""Cause of a loss that is not finite: the first position, and the term of its loss that is not
finite there.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

import ddlib as dd
from ddlib.processes import unsqueeze_times
from ddlib.weightings import Weighting, loss_weights
from recipes.engine.objectives.noising import NoisyBatch


def cause(
    process: dd.processes.ForwardProcess,
    weighting: Weighting,
    noisy: Sequence[NoisyBatch],
    losses: Sequence[Float[Tensor, "B L"]],
) -> str:
    """Describe the first token whose loss is NaN or infinite.

    The network is not called again, since its output may not repeat. Its output is the cause where
    every other term of the loss is finite; a loss of infinity then means a state that is impossible
    by it.

    Args:
        process: the noise.
        weighting: weights of the loss.
        noisy: the micro-batches of the step.
        losses: loss of each token.

    Returns:
        Position in the whole batch, token, state, time, and the term: measure, weight, divergence,
        network output, or gradient if every loss is finite.
    """
    first = 0
    for part, values in zip(noisy, losses, strict=True):
        bad = (~values.isfinite()).nonzero()
        if len(bad):
            row, position = bad[0].tolist()
            where, term = _term(process, weighting, part, values, row, position)
            return f"first at row {first + row}, position {position} ({where}): {term}"
        first += len(part.x)
    return "every loss is finite, the gradient is not"


def _term(
    process: dd.processes.ForwardProcess,
    weighting: Weighting,
    part: NoisyBatch,
    losses: Tensor,
    row: int,
    position: int,
) -> tuple[str, str]:
    """Return the token as text, and the term of its loss that is not finite."""
    here = (slice(row, row + 1), slice(position, position + 1))
    x = part.x[here]
    z = part.z[here]
    t, measure = (
        unsqueeze_times(values).expand_as(part.x)[here] for values in (part.t, part.measure)
    )
    where = f"x = {int(x)}, z = {int(z)}, t = {float(t):.6g}, loss {float(losses[row, position]):g}"
    if not bool(measure.isfinite().all()):
        return where, f"the measure of its time is {float(measure):g}"
    weight = process.loss_weight(x, z, t)
    if bool(weight.isfinite().all()):  # a weighting refuses NaN
        weight = loss_weights(weighting, process, weight, x, z, t)
    if not bool(weight.isfinite().all()):
        return where, f"its weight is {float(weight):g}"
    uniform = torch.zeros(1, 1, process.vocab_size, device=x.device)
    divergence = dd.nelbo(process, uniform, x, z, t)
    if not bool(divergence.isfinite().all()):
        return (
            where,
            f"the process has a divergence of {float(divergence):g} there, even for uniform "
            "predictions",
        )
    rest = f"the weight {float(weight):.4g} and the measure {float(measure):.4g} are finite"
    if bool(losses[row, position].isnan()):
        return where, f"the output of the network; {rest}"
    return where, f"the divergence, as the network gives the state a probability of 0; {rest}"
