"""Abstract interface of rules for the lengths of sequences, and the changes that they make between
the steps of a sampler.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.contrib.lengths.canvas import Canvas
from ddlib.samplers.base import State
from ddlib.samplers.control import Control, Needs, SamplingCall, check_single
from ddlib.utils.validation import check_count, require


class Length(Control):
    """Base class of rules that lengthen or shorten sequences while they are drawn, for processes
    with a mask.

    L of the ``shape`` of ``sample`` is then the largest length. A row begins with the prompt and
    ``start`` masks. After a step the rule inserts masks or removes positions, row by row, by the
    predictions of the network before the step, which shares its call. The network takes each row
    without the columns behind its length, and is called once per length in the batch. So a row with
    a seed is the same alone and in every batch. A row is finished when none of its positions is a
    mask, also for samplers that remask. The columns behind its length hold ``fill``. In the list of
    controls a rule stands behind the endings.

    A rule is a heuristic: the lengths are not those of the model's distribution, and there is no
    likelihood. The last step completes all rows, so ``steps`` bounds the number of changes too.

    Args:
        token: the end token.
        start: number of positions after the prompt at the beginning.
        block: number of positions in the window that a step may fill, from the first that is a
            mask; the network takes all. The same as LLaDA's ``block_length``; only for samplers
            that ignore the time grid. None for no window.
        fill: token behind the end of a row; by default ``token``.

    Raises:
        TypeError, ValueError: not tokens of the process, numbers below 1; when sampling, a process
            without a mask or with tokens that may be wrong, a sampler without
            ``Guarantees.movable_positions``, tokens that are given elsewhere than at the beginning.
    """

    breaks = Needs.FIXED_LENGTH | Needs.INDEPENDENT_DRAWS

    def __init__(
        self, token: int, start: int = 64, block: int | None = None, fill: int | None = None
    ) -> None:
        self.token = check_count("token", token, 0)
        self.start = check_count("start", start)
        self.block = None if block is None else check_count("block", block)
        self.fill = self.token if fill is None else check_count("fill", fill, 0)
        self.declare(fill=fill)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Return the instances on which a registered class is verified, for rows of up to 12 of 4
        tokens.
        """
        return [cls(1, 4), cls(1, 4, block=3)]

    @property
    def needs(self) -> Needs:
        needs = (
            Needs.MASK
            | Needs.FINAL_TOKENS
            | Needs.ONE_SEQUENCE
            | Needs.ONE_TIME
            | Needs.TOKEN_DISTRIBUTIONS
            | Needs.ONE_ALPHABET
            | Needs.MOVABLE_POSITIONS
        )
        return needs if self.block is None else needs | Needs.NO_TIMES

    def check(self, call: SamplingCall) -> None:
        check_single(call, Length)
        size = call.process.vocab_size
        for name, token in (("token", self.token), ("fill", self.fill)):
            require(token < size, f"{name} of {self!r} is {token}, must be a token in [0, {size})")
        prompt = ~call.free
        require(
            not bool((prompt[:, 1:] & ~prompt[:, :-1]).any()),
            f"controls holds {self!r} and prompt holds tokens after a gap, must hold tokens only "
            "at "
            "the beginning",
        )

    def begin(self, run: SamplingCall, state: State) -> tuple[SamplingCall, State, Any]:
        resizing = Resizing(self, run)
        return *resizing(run, state, -1), resizing

    def after_step(
        self, run: SamplingCall, state: State, memo: Any, k: int
    ) -> tuple[SamplingCall, State, Any]:
        if not 0 <= k < run.steps - 1:
            return run, state, memo
        return *memo(run, state, k), memo

    def start_canvas(self, canvas: Canvas) -> Canvas:
        """Return the canvas at the first step, by default as it is: the prompt and
        ``start`` masks.
        """
        return canvas

    @abstractmethod
    def observe(self, canvas: Canvas) -> Any:
        """Return what ``resize`` takes of the predictions before a step."""

    @abstractmethod
    def resize(
        self, canvas: Canvas, observed: Any, window: Bool[Tensor, "B L"], k: int
    ) -> tuple[Int64[Tensor, "B"], Int64[Tensor, "B"]]:
        """Return the places and numbers of positions to insert after a step, as ``Canvas.insert``
        takes them.

        Args:
            canvas: after the step.
            observed: the result of ``observe`` before it.
            window: (B, L) bool, positions that the step could fill.
            k: number of the step.
        """


class Resizing:
    """Lengths of the rows in one call of ``sample``.

    Args:
        rule: the rule for the lengths.
        run: the call of ``sample``.
    """

    canvas: Canvas
    """Rows before the step that comes."""
    window: Bool[Tensor, "B L"]
    """Positions that it may fill."""
    observed: Any
    """Observations of the rule before it."""
    filled: Int64[Tensor, "B"]
    """Number of positions before the window."""

    def __init__(self, rule: Length, run: SamplingCall) -> None:
        self.rule = rule
        self.sampler = run.sampler
        self.last = run.steps - 2
        self.filled = (~run.free).sum(1)

    def __call__(self, run: SamplingCall, state: State, k: int) -> tuple[SamplingCall, State]:
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
        return self.canvas.run, self.canvas.state

    def _begin(self, run: SamplingCall, state: State) -> Canvas:
        shape = state.z.shape
        length = self.filled.clone()
        closed = torch.zeros_like(run.free)
        canvas = Canvas(
            run, state, self.rule.fill, self.filled, length, closed, self.filled >= shape[1]
        )
        return self.rule.start_canvas(
            canvas.insert(length, torch.full_like(length, self.rule.start))
        )

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
