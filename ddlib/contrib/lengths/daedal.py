"""DAEDAL: a first length by the confidence in the end token, then masks where the network is least
certain.
"""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.contrib.lengths.base import Length
from ddlib.contrib.lengths.canvas import Canvas
from ddlib.utils.validation import check_count, check_number


class Daedal(Length):
    r"""Lengths that grow in two stages (DAEDAL, arXiv 2508.00819).

    1. Before the first step, ``step`` masks are appended until the confidence in the end token is
       at least ``enough``. Then half as many end tokens as ``positions`` are appended.
    2. After each step, the mask in the window with the smallest probability of its likeliest token,
       if that is below ``low``, becomes ``step`` masks, in rows whose confidence in the end token
       is below ``expand_below``.

    The confidence is that of ``Outlook.confidence``. Rows never become shorter.

    With ``Confidence("probability", threshold=0.9)``, temperature 0 and ``block=32`` this is the
    published program, github.com/Li-Jinsong/DAEDAL at 303c9e9. The defaults and the end tokens of
    stage 1 follow the program; the paper was not available. There are three differences. A position
    that is a token is certain to be that token, where the program takes the network's output for
    it. Stage 1 ends row by row, where the program ends it for all rows when the longest one stops.
    Any sampler fills the masks, not only that one.

    Args:
        token: the end token.
        start: number of positions after the prompt at the beginning.
        low: probability below which a mask becomes several.
        enough: confidence in the end token that ends stage 1.
        expand_below: confidence in the end token below which stage 2 inserts masks.
        step: number of masks that are appended in stage 1, and that replace one in stage 2.
        positions: number of positions in the confidence in the end token.
        block: see ``Length``.
        fill: token behind the end of a row; by default ``token``.
    """

    def __init__(
        self,
        token: int,
        start: int = 64,
        low: float = 0.1,
        enough: float = 0.5,
        expand_below: float = 0.9,
        step: int = 8,
        positions: int = 32,
        block: int | None = None,
        fill: int | None = None,
    ) -> None:
        super().__init__(token, start, block, fill)
        self.low = check_number("low", low, 0, 1, "in [0, 1]")
        self.enough = check_number("enough", enough, 0, 1, "in [0, 1]")
        self.expand_below = check_number("expand_below", expand_below, 0, 1, "in [0, 1]")
        self.step, self.positions = check_count("step", step), check_count("positions", positions)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [
            cls(1, 2, low=0.5, enough=0.3, step=2, positions=4, block=block) for block in (None, 3)
        ]

    def start_canvas(self, canvas: Canvas) -> Canvas:
        while True:
            weak = (
                (canvas.outlook(self.token).confidence(self.positions) < self.enough)
                & ~canvas.full
                & ~canvas.done
            )
            if not bool(weak.any()):
                break
            canvas = canvas.insert(canvas.length, torch.where(weak, self.step, 0))
        return canvas.insert(
            canvas.length, torch.where(canvas.done, 0, self.positions // 2), self.token
        )

    def observe(self, canvas: Canvas) -> tuple[Float64[Tensor, "B L"], Float64[Tensor, "B"]]:
        outlook = canvas.outlook(self.token)
        return outlook.best, outlook.confidence(self.positions)

    def resize(
        self, canvas: Canvas, observed: tuple[Tensor, Tensor], window: Bool[Tensor, "B L"], k: int
    ) -> tuple[Int64[Tensor, "B"], Int64[Tensor, "B"]]:
        best, confidence = observed
        weak = window & canvas.masked & (best < self.low)
        grows = weak.any(1) & (confidence < self.expand_below) & ~canvas.full
        return best.masked_fill(~weak, torch.inf).argmin(1), torch.where(grows, self.step - 1, 0)
