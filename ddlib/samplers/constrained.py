"""Reverse steps under a constraint.

States with a completion, and the distributions given the constraint.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ddlib.samplers.base import SamplingContext, level_process
from ddlib.samplers.constraints.joint import JointDraw
from ddlib.samplers.runtime.model import Predictions
from ddlib.typing import Tokens

_ROWS = 64
"""Number of token distributions that are computed at a time."""


def constrained_states(
    run: SamplingContext,
    parts: Sequence[Predictions],
    z: Tokens,
    target: Tokens,
    u: Float64[Tensor, "B L"],
    force: bool,
) -> Tokens:
    """Draw the states at the positions of the predictions by ``JointDraw``, as ``draw_states``."""
    if not parts:
        return z.clone()
    assert run.constraint is not None
    part = Predictions(
        parts[0].network, *map(torch.cat, zip(*(part[1:] for part in parts), strict=True))
    )
    states = run.network.context.states(z)
    first = run.network.context.first
    here = slice(first, first + z.shape[1])
    number = torch.full_like(states, -1)
    levels = torch.zeros_like(states)
    uniforms = torch.zeros_like(states, dtype=torch.float64)
    number[part.b, first + part.i] = torch.arange(len(part.b), device=z.device)
    uniforms[:, here] = u

    def log_probs(rows: Int64[Tensor, "n"], columns: Int64[Tensor, "n"]) -> Float[Tensor, "n V"]:
        return _token_logits(run, part.take(number[rows, columns]), force)

    levels[:, here] = target
    drawn = JointDraw(
        run.constraint, states, number >= 0, levels, log_probs, run.sharpen, uniforms
    ).tokens()
    return drawn[:, here]


def _token_logits(
    run: SamplingContext, predictions: Predictions, force: bool
) -> Float[Tensor, "N V"]:
    """Compute the logits of the tokens below each state."""
    logits = predictions.token_logits(torch.zeros_like(predictions.z), force)[:, 0]
    level = run.process.level_of(predictions.z[:, None])[:, 0]
    result = torch.empty_like(logits)
    for j in level.unique().tolist():
        rows = level == j
        result[rows] = level_process(run).descendant_logits(
            logits[rows], predictions.z[rows], j, 0, force
        )
    return result


def constrained_log_probs(
    run: SamplingContext, predictions: Sequence[Predictions], z: Tokens, target: Tokens, force: bool
) -> Iterator[tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Float[Tensor, "n K"]]]:
    """Compute the distributions over states, of the tokens with which the sequence has a
    completion.

    Args:
        run: the call of ``sample``, with a constraint.
        predictions: model output.
        z: (B, L) states.
        target: (B, L) levels of the states, 0 for tokens.
        force: see ``ForwardProcess.sample_given_level``.

    Yields:
        some of the positions, as rows and columns (n,) each, and their log-probabilities (n, K),
        without temperature and truncation.
    """
    assert run.constraint is not None
    possible = run.constraint.possible(run.network.context.states(z))[
        :, run.network.context.first :
    ]
    for part in predictions:
        for rows in torch.arange(len(part.b), device=z.device).split(_ROWS):
            some = part.take(rows)
            excluded = ~possible[some.b, some.i][:, run.constraint.token_class]
            logits = _token_logits(run, some, force).masked_fill_(excluded, -torch.inf)
            yield (
                some.b,
                some.i,
                run.constraint.at_levels(logits, target[some.b, some.i]).log_softmax(-1),
            )
