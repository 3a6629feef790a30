"""Tokens that are drawn in parallel such that the sequence has a completion."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.contrib.constraints.automaton import Automaton
from ddlib.contrib.constraints.classes import log_sums
from ddlib.typing import Sharpen, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.validation import require

_HELD = 1 << 24
"""Number of values of states in memory at a time."""


class JointDraw:
    r"""Draw of the tokens of one step under a constraint, from left to right.

    Let :math:`p_i` be the network's distribution at a position i that is drawn, and :math:`Q_i` the
    states to which the positions before i may lead. A token leads a state q to :math:`q'`.

    .. math:: p(x_i | x_{<i}) \propto p_i(x_i) \max_{q \in Q_i} \beta_i(q'), \qquad
        \beta_{i-1}(q) = \sum_x p_i(x) \beta_i(q'), \quad \max_x \beta_i(q'), \quad \beta_i(q')

    with the sum at a position that is drawn, the maximum at one that stays a mask, and the given
    token otherwise. Behind the last position :math:`\beta` is 1 at accepting states and 0 at
    others.

    The result is :math:`\prod_i p_i(x_i)`, the network's distribution of the step, conditioned on
    the existence of a completion, if no position that stays a mask lies before one that is drawn.
    This holds from left to right and in the last step. If a single position is drawn, the result is
    always :math:`p_i`, renormalised over the tokens with a completion. In other steps it is an
    approximation that has the same support. The exact condition takes exponential time there, as
    several paths lead through the masks.

    A position that descends to a cluster has the sum of :math:`p(x_i | x_{<i})` over the tokens of
    each cluster. The positions behind it take a cluster for all its tokens, as they take a mask, so
    several descents to clusters in one step are an approximation, and exact one at a time.

    Temperature and truncation act on the conditional distributions :math:`p(x_i | x_{<i})`.

    Args:
        automaton: the constraint, on the device of the tokens.
        z: (B, L) states, numbers of at least V at positions that are not tokens.
        drawn: (B, L) bool, the positions that are drawn.
        levels: (B, L) the levels of their new states, 0 for tokens.
        log_probs: map from positions, as rows and columns (n,) each, to log-probabilities (n, V)
            without temperature.
        sharpen: temperature and truncation.
        u: (B, L) uniforms in [0, 1).
    """

    def __init__(
        self,
        automaton: Automaton,
        z: Int64[Tensor, "B L"],
        drawn: Bool[Tensor, "B L"],
        levels: Int64[Tensor, "B L"],
        log_probs: Callable[[Int64[Tensor, "n"], Int64[Tensor, "n"]], Float[Tensor, "n V"]],
        sharpen: Sharpen,
        u: Float64[Tensor, "B L"],
    ) -> None:
        self.automaton = automaton
        self.z = z
        self.drawn = drawn
        self.levels = levels
        self.u = u
        self.log_probs = log_probs
        self.sharpen = sharpen

    def tokens(self) -> Tokens:
        """Draw the tokens; the other positions are as in ``z``.

        Raises:
            ValueError: the network excludes all tokens with which a sequence has a completion.
        """
        result = self.z.clone()
        rows = self.drawn.any(1).nonzero()[:, 0]
        columns = int(self.drawn.any(0).sum())
        held = len(self.automaton.accepting)
        number = max(1, _HELD // max(columns * held, len(self.automaton.edges[0]), 1))
        for some in rows.split(number):
            self._draw(result, some)
        return result

    def _draw(self, result: Tokens, rows: Int64[Tensor, "n"]) -> None:
        automaton = self.automaton
        drawn = self.drawn[rows]
        classes = automaton.classes(self.z[rows])
        after = self._backward(rows)
        columns = drawn.any(0).tolist()
        states = automaton.start_sets(len(rows))
        for column in range(max(i for i, some in enumerate(columns) if some) + 1):
            if columns[column]:
                here = drawn[:, column].nonzero()[:, 0]
                place = torch.full_like(here, column)
                scores = self.log_probs(rows[here], place)
                if column >= automaton.skip:
                    log_weights = automaton.scores(states[here], after[column][here])
                    log_weights = log_weights - log_weights.amax(-1, keepdim=True)
                    scores = scores + log_weights[:, automaton.token_class].to(scores.dtype)
                empty = ~(scores.amax(-1) > -torch.inf)
                require(
                    not bool(empty.any()),
                    f"the network gives probability 0 to all tokens at position {column} that the "
                    "constraint allows, "
                    "must leave one",
                )
                scores = automaton.at_levels(scores, self.levels[rows[here], place])
                state = draw_logits(self.sharpen(scores), self.u[rows[here], place])
                result[rows[here], place] = state
                classes[here, column] = automaton.classes(state)
            if column >= automaton.skip:
                states = automaton.follow(states, classes[:, column])

    def _backward(self, rows: Int64[Tensor, "n"]) -> dict[int, Float64[Tensor, "n K"]]:
        """Return the values beta of the states behind each column in which a position is drawn."""
        automaton = self.automaton
        drawn = self.drawn[rows]
        classes = automaton.classes(self.z[rows])
        length = drawn.shape[1]
        column = torch.arange(length, device=drawn.device)
        first = torch.where(drawn & (column >= automaton.skip), column, length).amin(1)
        columns = drawn.any(0).tolist()
        lowest = int(first.min())
        stops = ((classes != -1) | drawn).any(0).nonzero()[:, 0]
        stop = int(stops[-1]) + 1  # all positions behind are masks
        values = automaton.ending(length - stop).expand(len(rows), -1)
        after_column = dict[int, Tensor]()
        for i in range(stop - 1, lowest - 1, -1):
            if columns[i]:
                after_column[i] = values
            if i == lowest:
                break
            before = automaton.precede(values, classes[:, i])
            if columns[i]:
                here = (drawn[:, i] & (first < i)).nonzero()[:, 0]
                if len(here):
                    before[here] = automaton.sum_transitions(
                        values[here], self._weights(rows[here], i)
                    )
            values = before
        return after_column

    def _weights(self, rows: Int64[Tensor, "n"], column: int) -> Float64[Tensor, "n C"]:
        """Return the log-probabilities of the classes of tokens at a column."""
        log_probs = (
            self.log_probs(rows, torch.full_like(rows, column)).to(torch.float64).log_softmax(-1)
        )
        classes = self.automaton.token_class.expand(len(rows), -1)
        return log_sums(log_probs, classes, self.automaton.num_classes)
