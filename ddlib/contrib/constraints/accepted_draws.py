"""States with a completion that an automaton accepts, and the distributions given that."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ddlib.contrib.constraints.automaton import Automaton
from ddlib.contrib.constraints.joint import JointDraw
from ddlib.hierarchies.base import descendant_logits
from ddlib.processes import LevelProcess
from ddlib.samplers.runtime.model import Predictions
from ddlib.samplers.state_draws import Draws, Noise
from ddlib.typing import Sharpen, Tokens

_ROWS = 64
"""Number of token distributions that are computed at a time."""


@dataclass(frozen=True)
class AcceptedDraws(Draws):
    """Joint draws of states with which a sequence has a completion that an automaton accepts."""

    automaton: Automaton
    """Over the states of the process, on their device."""

    def states(
        self,
        predictions: Iterable[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        noise: Noise,
        force: bool,
        sharpen: Sharpen,
    ) -> Iterator[tuple[Predictions, Int64[Tensor, "N"]]]:
        """Draw the states by ``JointDraw``, at all positions of the predictions together."""
        parts = list(predictions)
        if not parts:
            return
        network = parts[0].network
        whole = Predictions(
            network, *map(torch.cat, zip(*(part[1:] for part in parts), strict=True))
        )
        states = network.context.states(z)
        first = network.context.first
        here = slice(first, first + z.shape[1])
        number = torch.full_like(states, -1)
        levels = torch.zeros_like(states)
        uniforms = torch.zeros_like(states, dtype=torch.float64)
        number[whole.b, first + whole.i] = torch.arange(len(whole.b), device=z.device)
        levels[:, here] = target
        uniforms[:, here] = noise.state

        def log_probs(
            rows: Int64[Tensor, "n"], columns: Int64[Tensor, "n"]
        ) -> Float[Tensor, "n V"]:
            return _token_logits(whole.take(number[rows, columns]), force)

        joint = JointDraw(self.automaton, states, number >= 0, levels, log_probs, sharpen, uniforms)
        drawn = joint.tokens()[:, here]
        for part in parts:
            yield part, drawn[part.b, part.i]

    def log_probs(
        self,
        predictions: Sequence[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        force: bool,
    ) -> Iterator[tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Float[Tensor, "n K"]]]:
        """Compute the distributions over states, of the tokens with which the sequence has a
        completion.
        """
        if not predictions:
            return
        automaton = self.automaton
        context = predictions[0].network.context
        possible = automaton.possible(context.states(z))[:, context.first :]
        for part in predictions:
            for rows in torch.arange(len(part.b), device=z.device).split(_ROWS):
                some = part.take(rows)
                excluded = ~possible[some.b, some.i][:, automaton.token_class]
                logits = _token_logits(some, force).masked_fill_(excluded, -torch.inf)
                to = target[some.b, some.i]
                yield some.b, some.i, automaton.at_levels(logits, to).log_softmax(-1)


def _token_logits(predictions: Predictions, force: bool) -> Float[Tensor, "N V"]:
    """Compute the logits of the tokens below each state."""
    process = cast(LevelProcess, predictions.network.process)
    logits = predictions.token_logits(torch.zeros_like(predictions.z), force)[:, 0]
    level = process.level_of(predictions.z[:, None])[:, 0]
    result = torch.empty_like(logits)
    for j in level.unique().tolist():
        rows = level == j
        states = predictions.z[rows]
        result[rows] = descendant_logits(process.hierarchy, logits[rows], states, j, 0, force)
    return result
