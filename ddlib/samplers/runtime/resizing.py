"""Changes of the lengths of rows between the steps of a sampler."""

from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.samplers.base import Sampler, SamplingContext, State
from ddlib.samplers.lengths.base import Canvas, Length
from ddlib.utils.validation import require

C = TypeVar("C", bound=SamplingContext)


class Resizing:
    """Lengths of the rows in one call of ``sample``.

    Args:
        rule: the rule for the lengths.
        run: the call of ``sample``.
        sampler: its sampler.

    Raises:
        ValueError: tokens that are given elsewhere than at the beginning of a row.
    """

    canvas: Canvas
    """Rows before the step that comes."""
    window: Bool[Tensor, "B L"]
    """Positions that it may fill."""
    observed: Any
    """Observations of the rule before it."""
    filled: Int64[Tensor, "B"]
    """Number of positions before the window."""

    def __init__(self, rule: Length, run: SamplingContext, sampler: Sampler) -> None:
        self.rule = rule
        self.sampler = sampler
        self.last = run.steps - 2
        given = ~run.free
        require(
            not bool((given[:, 1:] & ~given[:, :-1]).any()),
            f"length is {rule!r} and prompt holds tokens after a gap, must hold tokens only at "
            "the beginning",
        )
        self.filled = given.sum(1)

    def __call__(self, run: C, state: State, k: int) -> tuple[C, State]:
        """Return the context and the state for step k + 1, after step k.

        The state before the first step is k = -1.

        Positions outside of the window are not free for a step.
        """
        if k < 0:
            canvas = self._begin(run, state)
        else:
            closed = self.canvas.closed | (self.canvas.run.free & ~run.free)
            canvas = replace(self.canvas, run=run, state=state, closed=closed)
            self._advance(canvas)
            place, count = self.rule.resize(canvas, self.observed, self.window, k)
            canvas = canvas.insert(place, torch.where(canvas.done, 0, count))
        self._advance(canvas)
        canvas = replace(canvas, done=canvas.done | (self.filled >= canvas.length)).cut()
        t = self.sampler.time_of(replace(canvas.run, free=canvas.inside), canvas.state)
        canvas = replace(canvas, state=canvas.state._replace(t=t))
        if k < self.last:
            self.window = self._window(canvas)
            if not bool(canvas.done.all()):
                self.observed = self.rule.observe(canvas)
        else:  # the last step fills all
            self.window = canvas.inside
        free = self.window & ~canvas.closed & ~canvas.done[:, None]
        self.canvas = replace(canvas, run=replace(canvas.run, free=free))
        return cast(C, self.canvas.run), self.canvas.state

    def _begin(self, run: SamplingContext, state: State) -> Canvas:
        shape = state.z.shape
        if _has_columns(state.memo, shape):
            raise TypeError(
                f"length is {self.rule!r}, which {self.sampler!r} does not support: it stores "
                "values per position, "
                "and positions are inserted and deleted; use Ancestral() or Confidence()"
            )
        length = self.filled.clone()
        closed = torch.zeros_like(run.free)
        canvas = Canvas(
            run, state, self.rule.fill, self.filled, length, closed, self.filled >= shape[1]
        )
        return self.rule.begin(canvas.insert(length, torch.full_like(length, self.rule.start)))

    def _window(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        behind = self.filled[:, None] + (self.rule.block or canvas.state.z.shape[1])
        return canvas.inside & (canvas.column >= self.filled[:, None]) & (canvas.column < behind)

    def _advance(self, canvas: Canvas) -> None:
        """Move the window behind the positions that are all tokens."""
        self.filled = torch.minimum(self.filled, canvas.length)
        while True:
            window = self._window(canvas)
            ready = (self.filled < canvas.length) & ~(window & canvas.masked).any(1)
            if not bool(ready.any()):
                return
            self.filled = torch.where(ready, self.filled + window.sum(1), self.filled)


def _has_columns(memo: Any, shape: torch.Size) -> bool:
    """Return whether the memo of a sampler holds values of each position."""
    if isinstance(memo, Tensor):
        return memo.shape[:2] == shape
    return isinstance(memo, tuple | list) and any(_has_columns(member, shape) for member in memo)
