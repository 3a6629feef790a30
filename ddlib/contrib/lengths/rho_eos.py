"""rho-EOS: the end of a sequence moves by the density of predicted end tokens."""

from collections.abc import Sequence
from typing import Literal, Self

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.contrib.lengths.base import Length
from ddlib.contrib.lengths.canvas import Canvas
from ddlib.utils.validation import check_count, check_number, require

_SEGMENT = 0.1
"""Width of a segment of densities outside the interval: from one to the next the change doubles."""
_LARGEST = 8
"""Largest factor of a change."""


class RhoEOS(Length):
    """Lengths that grow and shrink by the density of the end token (rho-EOS, arXiv 2601.22527).

    After each step, masks are appended to a row if the density before the step is below ``low``.
    Its last positions, masks or tokens, are removed if it is above ``high``. Their number is
    ``step`` times 1, 2, 4 or 8, doubled with every tenth of distance from the interval. A row of
    the largest length stays as long as it is.

        last   the confidence in the end token, ``Outlook.confidence``, as the published program
        masks  the share of masks at which the end token is the likeliest, as the paper's abstract

    The share of masks is 0 or 1 when few are left, and then changes rows the most.

    With ``Confidence("probability", threshold=0.9)``, temperature 0 and ``block=32`` this is the
    published program, github.com/yjyddq/rho-EOS at 9cb20c6 with its schedule "exp". The numbers are
    its defaults; it has the share of masks as a function and does not call it. The paper itself was
    not at hand. There are three differences. A position that is a token is certain to be that
    token, where the program takes the network's output for it. A row keeps ``least`` positions,
    where the program may remove all. A row without masks is finished, where the program continues
    while other rows of the batch have some.

    Args:
        token: the end token.
        start: number of positions after the prompt at the beginning.
        low: density below which a row becomes longer.
        high: density above which a row becomes shorter.
        step: smallest change of the length.
        density: "last" or "masks".
        positions: number of positions in the confidence in the end token.
        changes: number of steps after which lengths may change; later ones leave them.
        least: smallest number of positions after the prompt.
        block: see ``Length``.
        fill: token behind the end of a row; by default ``token``.

    Raises:
        TypeError, ValueError: as ``Length``; ``low`` above ``high``, ``least`` above ``start``,
            another density.
    """

    def __init__(
        self,
        token: int,
        start: int = 64,
        low: float = 0.4,
        high: float = 0.6,
        step: int = 8,
        density: Literal["last", "masks"] = "last",
        positions: int = 32,
        changes: int = 64,
        least: int = 1,
        block: int | None = None,
        fill: int | None = None,
    ) -> None:
        super().__init__(token, start, block, fill)
        self.low = check_number("low", low, 0, 1, "in [0, 1]")
        self.high = check_number("high", high, 0, 1, "in [0, 1]")
        require(self.low <= self.high, f"low is {low} and high is {high}, must be at most high")
        require(density in ("last", "masks"), f"density is {density!r}, must be 'last' or 'masks'")
        self.step = check_count("step", step)
        self.density = density
        self.positions = check_count("positions", positions)
        self.changes, self.least = check_count("changes", changes, 0), check_count("least", least)
        require(
            self.least <= self.start,
            f"least is {least} and start is {start}, must be at most start",
        )

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(1, 5, step=1, positions=4), cls(1, 5, step=2, density="masks", block=3)]

    def observe(self, canvas: Canvas) -> Float64[Tensor, "B"]:
        outlook = canvas.outlook(self.token)
        masked = canvas.masked
        if self.density == "last":
            return outlook.confidence(self.positions)
        return (outlook.is_end & masked).sum(1) / masked.sum(1).clamp_min(1).to(torch.float64)

    def resize(
        self, canvas: Canvas, observed: Float64[Tensor, "B"], window: Bool[Tensor, "B L"], k: int
    ) -> tuple[Int64[Tensor, "B"], Int64[Tensor, "B"]]:
        distance = torch.maximum(self.low - observed, observed - self.high).clamp_min(0)
        # rounded first: (0.4 - 0.1) / 0.1 is above 3 in binary
        segment = (distance / _SEGMENT).round(decimals=6).ceil().long()
        factor = torch.where(segment > 0, 2 ** (segment - 1).clamp_min(0), 0).clamp_max(_LARGEST)
        number = torch.where(canvas.full | (k >= self.changes), 0, self.step * factor)
        spare = (canvas.length - canvas.first - self.least).clamp_min(0)
        return canvas.length, torch.where(
            observed < self.low, number, -torch.minimum(number, spare)
        )
