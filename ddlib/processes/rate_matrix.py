"""Process with an arbitrary constant rate matrix."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes.argument_checks import check_schedule
from ddlib.processes.base import ForwardProcess
from ddlib.processes.broadcasting import (
    elapsed,
    interior,
    products_at,
    rows_at,
    scalar,
    span,
    unsqueeze_times,
)
from ddlib.processes.matrix_exponential import MatrixExponential
from ddlib.schedules import Cosine, Linear, Schedule
from ddlib.typing import StateMatrix, StateProbs, Times, TokenProbs, Tokens
from ddlib.utils.repr import digest
from ddlib.utils.validation import require


class RateMatrix(ForwardProcess):
    r"""Structured noise with any constant rate matrix: q_t = exp(-log alpha(t) G), as in D3PM and
    SEDD.

    Dense, for up to about 1,000 states. The cost is :math:`O(S^3 \log(\Lambda \sigma))` for each
    distinct time of a batch, with :math:`\Lambda` the largest exit rate, and :math:`O(B L S^2)` for
    products with the exponentials. See ``MatrixExponential`` for their accuracy.

    Args:
        matrix: (S, S) rates per unit of -log alpha, row = from; off-diagonal entries >= 0, rows sum
            to 0. The first ``vocab_size`` states are the tokens.
        schedule: the schedule alpha.
        vocab_size: number of tokens V; default all S states, none of which may then be absorbing.

    Raises:
        TypeError: schedule of another kind.
        ValueError: not square, NaN, negative rates, rows that do not sum to 0, or no rate at all;
            an absorbing state without ``vocab_size``.
    """

    def __init__(
        self,
        matrix: Sequence[Sequence[float]] | Tensor,
        schedule: Schedule,
        vocab_size: int | None = None,
    ) -> None:
        check_schedule(schedule)
        exponential = MatrixExponential(matrix)
        rates = exponential.matrix
        require(bool(rates.any()), "matrix is zero everywhere, must have at least one rate")
        absorbing = (~rates.any(1)).nonzero()[:, 0].tolist()
        require(
            vocab_size is not None or not absorbing,
            f"vocab_size is None and row {absorbing} of matrix is zero: state the number of "
            "tokens. A state that is "
            "never left, such as a mask, is usually no token: tokens first, then the mask",
        )
        size = len(rates)
        super().__init__(size if vocab_size is None else vocab_size, size, rates.device)
        self.declare(vocab_size=vocab_size)
        self.schedule = schedule
        self.exponential = exponential
        schedule.check_resolves("matrix", exponential.largest_change)

    schedule: Schedule

    @property
    def matrix(self) -> StateMatrix:
        """The rates per unit of -log alpha, (S, S) float64, row = from."""
        return self.exponential.matrix

    @classmethod
    def examples(cls) -> Sequence[Self]:
        ring = torch.eye(4).roll(1, 0) + 0.5 * torch.eye(4).roll(-1, 0)
        return [
            cls(ring - 1.5 * torch.eye(4), Linear()),
            cls(ring - 1.5 * torch.eye(4), Cosine(), vocab_size=3),
        ]

    def __repr__(self) -> str:
        sizes = f"vocab_size={self.vocab_size}, num_states={self.num_states}"
        return (
            f"{type(self).__name__}({sizes}, matrix={digest(self.matrix)}, "
            f"schedule={self.schedule!r})"
        )

    def marginal(self, x: Tokens, t: Times) -> StateProbs:
        self.check_inputs(x=x, t=t)
        return rows_at(self._token_marginals, x, t).to(t.dtype)

    def predictive(self, p: TokenProbs, t: Times) -> StateProbs:
        return products_at(p, self._token_marginals, t)

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        return self.schedule.rate(interior(scalar(t, "t", self.device))) * self.matrix

    def rates_into(self, z: Tokens, t: Times) -> Float64[Tensor, "B L S"]:
        rate = unsqueeze_times(self.schedule.rate(interior(t)))
        return rate.expand(z.shape)[..., None] * self.matrix.T[z]

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        return self.exponential(elapsed(self.schedule, *span(s, t, self.device)))

    def _token_marginals(self, t: Tensor) -> Tensor:
        return self.exponential(self.schedule.hazard(t))[: self.vocab_size]
