"""Any constant generator on a clock."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.checks import require
from ddlib.printing import digest
from ddlib.processes.base import ForwardProcess, each_time, elapsed, interior, scalar, span, through
from ddlib.processes.generator import Generator
from ddlib.schedules import Cosine, Linear, Schedule
from ddlib.typing import StateLaw, StateMatrix, Times, Tokens, WordLaw


class RateMatrix(ForwardProcess, own_times=True):
    r"""Structured noise with any constant generator: q_t = exp(-log alpha(t) G), as in D3PM and SEDD.

    Dense, for state spaces of up to a few hundred states.

    Args:
        matrix: (S, S) rates on the clock, row = from; off-diagonal entries >= 0, rows sum to 0. The first
            ``vocab_size`` states are the words.
        schedule: the clock alpha.
        vocab_size: number of words V; default all S states.

    Raises:
        TypeError: schedule of another kind.
        ValueError: not square, NaN, negative rates, rows that do not sum to 0, or no rate at all.
    """

    def __init__(self, matrix: Tensor, schedule: Schedule, vocab_size: int | None = None) -> None:
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule is {schedule!r}, must be a ddlib.schedules.Schedule")
        matrix = torch.as_tensor(matrix)
        rounding = torch.finfo(matrix.dtype).eps if matrix.is_floating_point() else 0.0
        matrix = matrix.to(torch.float64)
        require(
            matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and matrix.numel() > 0,
            f"matrix has shape {tuple(matrix.shape)}, must be square (S, S) and not empty",
        )
        require(bool(matrix.isfinite().all()), "matrix holds NaN or infinity, must be finite")
        off_diagonal = matrix - torch.diag(matrix.diagonal())
        require(bool((off_diagonal >= 0).all()), f"matrix holds the rate {float(off_diagonal.min())}, must be >= 0")
        scale = float(off_diagonal.max())
        require(scale > 0, "matrix is zero everywhere, must have at least one rate")
        excess = matrix.sum(1)
        worst = int(excess.abs().argmax())
        require(
            abs(float(excess[worst])) <= max(1e-9, rounding) * scale * len(matrix),
            f"matrix row {worst} sums to {float(excess[worst])}, must sum to 0",
        )
        schedule.check()
        super().__init__(len(matrix) if vocab_size is None else vocab_size, len(matrix))
        self.schedule = schedule
        self.generator = Generator(off_diagonal - torch.diag(off_diagonal.sum(1)))
        self.register_buffer("matrix", off_diagonal - torch.diag(off_diagonal.sum(1)))

    matrix: Tensor
    schedule: Schedule

    @classmethod
    def examples(cls) -> Sequence[Self]:
        ring = torch.eye(4).roll(1, 0) + 0.5 * torch.eye(4).roll(-1, 0)
        return [cls(ring - 1.5 * torch.eye(4), Linear()), cls(ring - 1.5 * torch.eye(4), Cosine(), vocab_size=3)]

    def __repr__(self) -> str:
        sizes = f"vocab_size={self.vocab_size}, num_states={self.num_states}"
        return f"{type(self).__name__}({sizes}, matrix={digest(self.matrix)}, schedule={self.schedule!r})"

    def marginal(self, x: Tokens, t: Times) -> StateLaw:
        self.check_inputs(x=x, t=t)
        return self.predictive(one_hot(x, self.vocab_size).to(torch.float64), t).to(t.dtype)

    def predictive(self, p: WordLaw, t: Times) -> StateLaw:
        laws = each_time(lambda time: self.generator(self.schedule.hazard(time))[: self.vocab_size], t)
        return through(p, laws.to(p.dtype))

    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        return self.schedule.rate(interior(scalar(t, "t", self.device))) * self.matrix

    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        return self.generator(elapsed(self.schedule, *span(s, t, self.device)))
