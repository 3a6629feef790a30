"""Abstract interface of rules for the lengths of sequences, and the canvas on which they act."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.config.part import Part
from ddlib.parameterization.logits import posterior_logits
from ddlib.processes import ForwardProcess
from ddlib.samplers.base import Sampler, SamplingContext, State
from ddlib.samplers.runtime.context import RaggedContext
from ddlib.utils.repr import shown
from ddlib.utils.validation import check_count, require


class Outlook(NamedTuple):
    """Predictions of the network, as far as rules for lengths use them.

    Certain at positions that are tokens.
    """

    best: Float64[Tensor, "B L"]
    """Largest probability of a token."""
    end: Float64[Tensor, "B L"]
    """Probability of the end token."""
    is_end: Bool[Tensor, "B L"]
    """True where the end token is the likeliest."""

    def confidence(self, positions: int) -> Float64[Tensor, "B"]:
        """Return the confidence in the end token, in [0, 1].

        It is the sum of the probabilities of the end token at the last positions at which it is the
        likeliest, divided by their largest number, ``positions``.
        """
        last = self.is_end & (self.is_end.flip(1).cumsum(1).flip(1) <= positions)
        return (self.end * last).sum(1) / positions


@dataclass(frozen=True)
class Canvas:
    """Rows of different lengths between two steps, in as many columns as the largest length."""

    run: SamplingContext
    """The call of ``sample``; its network takes each row without the columns behind its length."""
    state: State
    """States; the columns behind the length of a row hold ``fill``."""
    fill: int
    first: Int64[Tensor, "B"]
    """Number of given tokens at the beginning."""
    length: Int64[Tensor, "B"]
    """Number of positions of each row, the given tokens included."""
    closed: Bool[Tensor, "B L"]
    """True at positions that an ``Ending`` fixed."""
    done: Bool[Tensor, "B"]
    """True at rows that are finished, and whose length stays."""

    @property
    def full(self) -> Bool[Tensor, "B"]:
        """Return True at rows of the largest length."""
        return self.length >= self.state.z.shape[1]

    @property
    def column(self) -> Int64[Tensor, "L"]:
        """Return the number of each column."""
        return torch.arange(self.state.z.shape[1], device=self.state.z.device)

    @property
    def inside(self) -> Bool[Tensor, "B L"]:
        """Return True at the positions of each row behind its given tokens."""
        return (self.column >= self.first[:, None]) & (self.column < self.length[:, None])

    @property
    def masked(self) -> Bool[Tensor, "B L"]:
        """Return True at positions that are not tokens yet."""
        return self.inside & (self.state.z >= self.run.process.vocab_size)

    def insert(
        self, place: Int64[Tensor, "B"], count: Int64[Tensor, "B"], state: int | None = None
    ) -> Self:
        """Return a canvas with positions inserted, or removed from the end, up to the largest
        length.

        Args:
            place: (B,) the position before which new ones are inserted, such as the length of the
                row.
            count: (B,) their number; a negative one removes positions from the end.
            state: their state; None for the mask.
        """
        z = self.state.z
        size = self.state.z.shape[1]
        length = (self.length + count).clamp_max(size)
        more = count.clamp_min(0)[:, None]
        column = self.column
        new = (column >= place[:, None]) & (column < place[:, None] + more)
        source = torch.where(column < place[:, None] + more, column, column - more)
        inserted = self.run.process.num_states - 1 if state is None else state
        moved = torch.where(new, inserted, z.gather(1, source))
        moved = torch.where(column < length[:, None], moved, self.fill)
        closed = self.closed.gather(1, source) & ~new & (column < length[:, None])
        return replace(self, state=self.state._replace(z=moved), length=length, closed=closed).cut()

    def cut(self) -> Self:
        """Return the canvas with a network for the present lengths, which is not evaluated at
        finished rows.
        """
        network = self.run.network
        lengths = torch.where(self.done, 0, self.length)
        if isinstance(network.context, RaggedContext) and torch.equal(
            network.context.lengths, lengths
        ):
            return self
        context = RaggedContext(
            network.denoiser, lengths, self.run.process.vocab_size, network.compact
        )
        return replace(self, run=replace(self.run, network=network.within(context)))

    def outlook(self, token: int) -> Outlook:
        """Evaluate the network; a step from the same states shares its call."""
        process, (z, t, _), network = self.run.process, self.state, self.run.network
        is_end = self.inside & (z == token)
        best = torch.ones_like(z, dtype=torch.float64)
        end = is_end.to(torch.float64)
        for part in network.at(z, t, self.masked & ~self.done[:, None]):
            logits = part.token_logits(torch.zeros_like(part.z))
            probs = (
                posterior_logits(process, logits, part.z[:, None], part.t)[:, 0]
                .softmax(-1)
                .to(torch.float64)
            )
            best[part.b, part.i], likeliest = probs.max(-1)
            end[part.b, part.i] = probs[:, token]
            is_end[part.b, part.i] = likeliest == token
        return Outlook(best, end, is_end)


class Length(Part):
    """Base class of rules that lengthen or shorten sequences while they are drawn, for processes
    with a mask.

    ``sample`` takes one as ``length``; L of its ``shape`` is then the largest length. A row begins
    with the prompt and ``start`` masks. After a step the rule inserts masks or removes positions,
    row by row, by the predictions of the network before the step, which shares its call. The
    network takes each row without the columns behind its length, and is called once per length in
    the batch. So a row with a seed is the same alone and in every batch. A row is finished when
    none of its positions is a mask, also for samplers that remask. The columns behind its length
    hold ``fill``.

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
            without a mask or with tokens that may be wrong, a sampler that holds values of every
            position, tokens that are given elsewhere than at the beginning.
    """

    def __init__(
        self, token: int, start: int = 64, block: int | None = None, fill: int | None = None
    ) -> None:
        self.token, self.start = check_count("token", token, 0), check_count("start", start)
        self.block = None if block is None else check_count("block", block)
        self.fill = self.token if fill is None else check_count("fill", fill, 0)
        self.declare(fill=fill)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Return the instances on which a registered class is verified, for rows of up to 12 of 4
        tokens.
        """
        return [cls(1, 4), cls(1, 4, block=3)]

    def check(self, process: ForwardProcess, sampler: Sampler) -> None:
        """Raise before sampling if the process or the sampler is not supported."""
        for name, given in (("token", self.token), ("fill", self.fill)):
            require(
                given < process.vocab_size,
                f"{name} of {self!r} is {given}, must be a token in [0, {process.vocab_size})",
            )
        if process.num_states == process.vocab_size:
            raise TypeError(f"length is {self!r}, which needs a mask state, {process!r} has none")
        tokens = torch.arange(process.vocab_size, device=process.device)[:, None]
        if bool(process.replaceable(tokens).any()):
            raise TypeError(
                f"length is {self!r}, which needs tokens that do not change once drawn, those of "
                f"{process!r} may be "
                "wrong"
            )
        if not sampler.guarantees.supports_stopping:
            raise TypeError(
                f"length is {self!r}, which {sampler!r} does not support: a row has several "
                "sequences"
            )
        if self.block is not None and sampler.guarantees.by_times:
            raise TypeError(
                f"block of {self!r} is {self.block}, and {sampler!r} has the same time at all "
                "positions: use "
                "Confidence, or block=None"
            )

    def begin(self, canvas: Canvas) -> Canvas:
        """Return the canvas at the first step, by default as it is.

        The prompt and ``start`` masks.
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

    def __repr__(self) -> str:
        return shown(self, Length)
